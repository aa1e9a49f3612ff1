#!/usr/bin/env bash
# De-duplication as clients see it: copies of an image in several volumes take the space of one, also
# after kill -9 in the middle of a copy, are read whole with a device missing, and give the space back
# when the last of them goes. What is written over one of them is not seen in another.
. "$(dirname "$0")/lib.sh"
need nbdcopy jq
begin
files 400M d0 d1 d2
files 64M l0
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2} log "$DIR/l0"
serve p
refuse "$FOREBAY" volume create -V 64M -o dedup=on p/thick
refuse "$FOREBAY" volume create -s -V 64M -o dedup=perhaps p/odd
for volume in v0 v1 v2 v3 v4; do run "$FOREBAY" volume create -s -V 64M -o dedup=on p/$volume; done
run "$FOREBAY" volume create -s -V 64M -o dedup=verify p/v5
refuse "$FOREBAY" volume set reservation=auto p/v0

# Half of the image is different blocks, a quarter zeros, and a quarter one block.
random_file image 16M
head -c 8M /dev/zero >>image
for _ in $(seq 2048); do head -c 4096 image; done >image.tail
cat image.tail >>image
whole=$(hash_of image)
fits() { # least and most MiB that the volumes take, parity left out
    local bytes
    bytes=$(pool_json stats p | jq ".pools[0].dedup.stored_bytes + 1048575")
    [ $((bytes >> 20)) -ge "$1" ] && [ $((bytes >> 20)) -le "$2" ] ||
        fail "$3: the contents take $((bytes >> 20)) MiB, and not $1 to $2"
}
head_of() { nbdcopy "$(uri "$1")" - | head -c 32M | sha256sum | cut -d' ' -f1; }

say "copies"
for volume in v0 v1 v2; do run nbdcopy --flush image "$(uri p/$volume)"; done
run "$FOREBAY" volume snapshot p/v2@kept
fits 16 16 "three copies"
run "$FOREBAY" volume clone p/v2@kept p/twin
# Killed in the middle of a copy: what was there before is there, and the copy can be made again.
nbdcopy --flush image "$(uri p/v3)" >/dev/null 2>&1 &
copier=$!
sleep 0.2
kill_server
end_of $copier
serve p
run nbdcopy --flush image "$(uri p/v3)"
run nbdcopy --flush image "$(uri p/v5)"
run "$FOREBAY" pool sync p
fits 16 16 "five copies, one of them after the server was killed"
ratio=$("$FOREBAY" pool list -Hp -o dedupratio p)
# nbdcopy does not write zeros: five volumes with 24 MiB each, of 16 MiB of contents.
[ "$ratio" = 7.50 ] || fail "dedupratio is $ratio"
for volume in v0 v1 v2 v3 v5 twin v2@kept; do
    [ "$(head_of p/$volume)" = "$whole" ] || fail "$volume is not the image"
done

say "one of them changes"
random_file other 4M
run nbdcopy --flush other "$(uri p/v0)"
run "$FOREBAY" pool sync p
fits 20 20 "other contents in one volume"
for volume in v1 v2@kept; do
    [ "$(head_of p/$volume)" = "$whole" ] || fail "a write to v0 is seen in $volume"
done
cat other <(tail -c +$((4 * 1024 * 1024 + 1)) image) >changed
[ "$(head_of p/v0)" = "$(hash_of changed)" ] || fail "v0 does not hold what was written over it"

say "a device is missing, then another one is damaged"
run "$FOREBAY" pool offline p "$DIR/d1"
for volume in v0 v3 v5; do
    want=$whole
    [ $volume = v0 ] && want=$(hash_of changed)
    [ "$(head_of p/$volume)" = "$want" ] || fail "$volume with a device missing"
done
run "$FOREBAY" pool online p "$DIR/d1"
await 60 "the pool is whole again" eval '[ "$(health)" = ONLINE ]'
run "$FOREBAY" pool wait p
dd if=/dev/urandom of="$DIR/d2" bs=1M seek=8 count=60 conv=notrunc status=none
run "$FOREBAY" pool scrub -w p
for volume in v1 twin v2@kept; do
    [ "$(head_of p/$volume)" = "$whole" ] || fail "$volume after a device was damaged"
done
run "$FOREBAY" pool clear p
scrub_clean p

say "space comes back with the last one"
run "$FOREBAY" volume destroy p/twin
run "$FOREBAY" volume destroy -r p/v2
for volume in v0 v1 v3; do run "$FOREBAY" volume destroy p/$volume; done
run "$FOREBAY" pool sync p
fits 16 16 "one volume is left"
stop_server
serve p
[ "$(head_of p/v5)" = "$whole" ] || fail "the last copy went with the others"
run "$FOREBAY" volume destroy p/v5
is_empty() { [ "$("$FOREBAY" pool list -Hp -o allocated p)" = 0 ]; }
await 20 "all space is free" is_empty
alive
stop_server
pass
