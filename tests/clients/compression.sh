#!/usr/bin/env bash
# Compression as clients see it: what an image of this system's files and of noise takes, that it is
# read whole after kill -9 in the middle of a copy, with a device missing and another damaged, and from
# snapshots and clones, and that the space comes back.
. "$(dirname "$0")/lib.sh"
need nbdcopy jq tar
begin
files 400M d0 d1 d2
files 64M l0
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2} log "$DIR/l0"
serve p
refuse "$FOREBAY" volume create -V 64M -o compression=lz4 p/thick
refuse "$FOREBAY" volume create -s -V 64M -o compression=gzip p/odd
for codec in lz4 zstd zstd-9; do
    run "$FOREBAY" volume create -s -V 64M -o compression=$codec p/$codec
done
run "$FOREBAY" volume create -s -V 64M -o compression=zstd -o dedup=on p/both
refuse "$FOREBAY" volume set reservation=auto p/lz4

# 32 MiB of programs and texts, 8 MiB of zeros, and 8 MiB that nothing makes smaller.
tar -cf - /usr/bin /usr/share/doc /etc 2>/dev/null | head -c 32M >image
head -c 8M /dev/zero >>image
random_file noise 8M
cat noise >>image
whole=$(hash_of image)
head_of() { nbdcopy "$(uri "$1")" - | head -c 48M | sha256sum | cut -d' ' -f1; }
# Packed blocks, and blocks since the import that are stored as they are.
taken() { pool_json stats p | jq ".pools[0].compression | .stored_bytes + .plain_blocks * 4096"; }
same() { # WHAT VOLUME...
    local what=$1
    shift
    for volume in "$@"; do
        [ "$(head_of p/$volume)" = "$whole" ] || fail "$volume is not the image: $what"
    done
}

say "copies"
before=0
for codec in lz4 zstd zstd-9; do
    run nbdcopy --flush image "$(uri p/$codec)"
    run "$FOREBAY" pool sync p
    now=$(taken)
    say "$codec: 32 MiB of files and 8 of noise take $(((now - before) >> 10)) KiB"
    [ $((now - before)) -lt $((34 << 20)) ] || fail "$codec saves less than a fifth of the files"
    before=$now
done
"$FOREBAY" pool stats p | grep "^compression" || fail "pool stats does not show compression"
ratio=$("$FOREBAY" volume get -Hp -o value compressratio p/zstd)
[ "${ratio/./}" -gt 110 ] || fail "compressratio of the volume is $ratio"
ratio=$("$FOREBAY" pool list -Hp -o compressratio p)
[ "${ratio/./}" -gt 120 ] || fail "compressratio of the pool is $ratio"
same "after the copies" lz4 zstd zstd-9
run "$FOREBAY" volume snapshot p/zstd@kept
run "$FOREBAY" volume clone p/zstd@kept p/twin

say "killed in the middle of a copy"
nbdcopy --flush image "$(uri p/both)" >/dev/null 2>&1 &
copier=$!
sleep 0.3
kill_server
end_of $copier
serve p
run nbdcopy --flush image "$(uri p/both)"
run "$FOREBAY" pool sync p
same "after the server was killed" lz4 zstd zstd-9 both twin zstd@kept

say "one of them changes"
run nbdcopy --flush noise "$(uri p/zstd)"
run "$FOREBAY" pool sync p
same "a write to zstd is seen elsewhere" lz4 twin zstd@kept both
cat noise <(tail -c +$((8 * 1024 * 1024 + 1)) image) >changed
[ "$(head_of p/zstd)" = "$(hash_of changed)" ] || fail "zstd does not hold what was written over it"

say "a device is missing, then another one is damaged"
run "$FOREBAY" pool offline p "$DIR/d1"
same "with a device missing" lz4 zstd-9 twin both
run "$FOREBAY" pool online p "$DIR/d1"
await 60 "the pool is whole again" eval '[ "$(health)" = ONLINE ]'
run "$FOREBAY" pool wait p
dd if=/dev/urandom of="$DIR/d2" bs=1M seek=8 count=60 conv=notrunc status=none
run "$FOREBAY" pool scrub -w p
same "after a device was damaged" lz4 zstd-9 twin zstd@kept both
run "$FOREBAY" pool clear p
scrub_clean p

say "sent and received"
"$FOREBAY" volume send p/zstd@kept >stream 2>.out || fail "it cannot be sent: $(cat .out)"
"$FOREBAY" volume receive p/back <stream >.out 2>&1 || fail "it cannot be received: $(cat .out)"
same "after it was sent and received" back

say "space comes back"
run "$FOREBAY" volume destroy p/twin
run "$FOREBAY" volume destroy -r p/back
run "$FOREBAY" volume destroy -r p/zstd
for volume in zstd-9 lz4; do run "$FOREBAY" volume destroy p/$volume; done
run "$FOREBAY" pool sync p
stop_server
serve p
same "the others are gone" both
run "$FOREBAY" volume destroy p/both
is_empty() { [ "$("$FOREBAY" pool list -Hp -o allocated p)" = 0 ]; }
await 20 "all space is free" is_empty
alive
stop_server
pass
