#!/usr/bin/env bash
# Snapshots under writes: each holds every write that was answered before its command, none that was
# begun after it, and nothing out of order, also after kill -9 in the middle of their destruction.
# Clones, rollbacks and space, as nbdcopy sees them.
. "$(dirname "$0")/lib.sh"
need nbdcopy nbdinfo jq
need_nbd_shell
begin
files 256M d0 d1 d2
files 64M l0
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2} log "$DIR/l0"
run "$FOREBAY" volume create -s -V 128M p/v
serve p

# Write i goes to block i * 7919 mod 2000, one at a time, and says i; files tell how far it is.
cat >writer.py <<'P'
import os, struct
def tell(name, number):
    with open(name + ".new", "w") as out:
        out.write(str(number))
    os.rename(name + ".new", name)
h.connect_uri(os.environ["URI"])
number = 0
try:
    while True:
        number += 1
        tell("begun", number)
        block = number * 7919 % 2000
        flags = nbd.CMD_FLAG_FUA if number % 5 == 0 else 0
        h.pwrite(struct.pack("<Q", number) * 512, block * 4096, flags)
        tell("answered", number)
except nbd.Error as error:
    print("ended by", error)
P
# Which write is the last one in an image, all earlier ones and no later one being there.
cat >last.py <<'P'
import struct, sys
image, least, most = open(sys.argv[1], "rb").read(2000 * 4096), int(sys.argv[2]), int(sys.argv[3])
held = []
for block in range(2000):
    words = struct.unpack_from("<512Q", image, block * 4096)
    assert len(set(words)) == 1, "block %d is torn" % block
    held.append(words[0])
last = max(held)
right = [0] * 2000
for number in range(1, last + 1):
    right[number * 7919 % 2000] = number
assert held == right, "not the writes up to %d" % last
assert least <= last <= most, "holds writes up to %d, and not %d to %d" % (last, least, most)
P
copy_of() { run nbdcopy "$(uri "$1")" "$2"; }

say "snapshots while a client writes"
URI=$(uri p/v) PATH=/usr/bin:$PATH nbdsh -c 'exec(open("writer.py").read())' >writer.log 2>&1 &
writer=$!
undo "kill $writer 2>/dev/null"
await 20 "the client writes" has_answers answered 200
rounds=$(longer 12 60)
for round in $(seq "$rounds"); do
    least=$(counted_in answered)
    run "$FOREBAY" volume snapshot "p/v@s$round"
    most=$(counted_in begun)
    echo "$least $most" >"bounds$round"
    await 20 "the client goes on" has_answers answered $((most + 150))
done
check() {
    local round
    for round in $(seq "$rounds"); do
        [ -e "bounds$round" ] || continue
        copy_of "p/v@s$round" image
        # shellcheck disable=SC2046 # two numbers
        run python3 last.py image $(cat "bounds$round")
    done
}
check

say "kill -9 while snapshots are destroyed"
run "$FOREBAY" volume destroy p/v@s2,s5
run "$FOREBAY" volume destroy p/v@s7%s9
rm bounds2 bounds5 bounds7 bounds8 bounds9
kill_server
wait "$writer" || fail "the writer failed"
grep -q "ended by" writer.log || fail "the writer did not notice the kill"
serve p
check
[ "$("$FOREBAY" volume list -H -t snapshot -o name p | wc -l)" = $((rounds - 5)) ] || fail "snapshots came back"
answered=$(counted_in answered)
copy_of p/v image
# What was answered with FUA is there; of the rest a part.
run python3 last.py image $((answered / 5 * 5)) "$(counted_in begun)"

say "read-only, and what is refused"
[ "$(nbdinfo --json "$(uri p/v@s1)" | jq '.exports[0].is_read_only')" = true ] || fail "not read-only"
refuse nbd_shell -u "$(uri p/v@s1)" -c 'h.set_strict_mode(0)' -c 'h.pwrite(b"x" * 4096, 0)'
refuse "$FOREBAY" volume snapshot p/v@s1
refuse "$FOREBAY" volume snapshot p/none@s1
refuse "$FOREBAY" volume destroy p/v
refuse "$FOREBAY" volume rollback p/v@s1

say "a clone and its origin go their own ways"
before=$(hash_volume p/v@s3)
run "$FOREBAY" volume clone p/v@s3 p/c
[ "$(hash_volume p/c)" = "$before" ] || fail "the clone is not as its snapshot"
random_file other 128M
run nbdcopy --flush other "$(uri p/c)"
[ "$(hash_volume p/c)" = "$(hash_of other)" ] || fail "the clone lost what was written"
[ "$(hash_volume p/v@s3)" = "$before" ] || fail "the snapshot changed with its clone"
refuse "$FOREBAY" volume destroy p/v@s3
run "$FOREBAY" volume destroy p/c

say "back to a snapshot"
run "$FOREBAY" volume rollback -r p/v@s4
[ "$(hash_volume p/v)" = "$(hash_volume p/v@s4)" ] || fail "the volume is not as the snapshot"
run "$FOREBAY" volume list -t all p
[ "$("$FOREBAY" volume list -H -t snapshot -o name p | tail -1)" = p/v@s4 ] || fail "newer ones are left"
[ "$("$FOREBAY" volume list -H -o name p/v@s4)" = p/v@s4 ] || fail "a snapshot that is named is not listed"
[ "$("$FOREBAY" volume list -H -o name p/v p/v@s4 | xargs)" = "p/v p/v@s4" ] || fail "a volume and a snapshot"
[ "$("$FOREBAY" volume get -Hp -o value holds,sync p/v@s4 | xargs)" = "- -" ] || fail "properties of a snapshot"
refuse "$FOREBAY" volume get used p/v@none

say "new names"
cat >rename.py <<'P'
import os, subprocess
h.connect_uri(os.environ["URI"])
rename = [os.environ["FOREBAY"], "volume", "rename", "p/v", "p/w"]
refused = subprocess.run(rename, capture_output=True, text=True)
assert refused.returncode != 0 and "-f" in refused.stderr, refused
h.pread(4096, 0)
subprocess.run([*rename[:3], "-f", *rename[3:]], check=True)
try:
    h.pread(4096, 0)
    print("still connected")
except nbd.Error:
    print("disconnected")
P
whole=$(hash_volume p/v)
for export in v v@s4; do
    how=$(URI=$(uri "p/$export") FOREBAY=$FOREBAY nbd_shell -c 'exec(open("rename.py").read())') ||
        fail "rename.py: $how"
    [ "$how" = disconnected ] || fail "a client of $export under its old name: $how"
    [ "$export" = v@s4 ] || run "$FOREBAY" volume rename p/w p/v
done
run "$FOREBAY" volume rename p/w@s4 p/w@kept
kill_server
serve p
for export in p/w p/w@kept; do
    [ "$(hash_volume "$export")" = "$whole" ] || fail "$export is not as before"
done
refuse nbdinfo "$(uri p/v)"
refuse "$FOREBAY" volume rename p/w p/v@kept
refuse "$FOREBAY" volume rename p/w@kept p/v@kept
run "$FOREBAY" volume create -s -V 8M p/v
refuse "$FOREBAY" volume rename p/w p/v
run "$FOREBAY" volume destroy p/v
run "$FOREBAY" volume rename p/w p/v

say "space comes back"
run "$FOREBAY" volume destroy -r p/v
is_empty() { [ "$("$FOREBAY" pool list -Hp -o allocated p)" = 0 ]; }
await 20 "the space of destroyed snapshots" is_empty
scrub_clean p
no_errors p
stop_server
pass
