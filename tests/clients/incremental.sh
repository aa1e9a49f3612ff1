#!/usr/bin/env bash
# Incremental backups by clients that know nothing of pools: what a snapshot has changed since an older one is a
# dirty bitmap, as libnbd's and QEMU's tools read it. Also of the volume itself while a client writes.
. "$(dirname "$0")/lib.sh"
need nbdcopy nbdinfo qemu-img qemu-io jq
need_nbd_shell
begin
files 256M d0 d1
run "$FOREBAY" pool create p mirror "$DIR"/d{0,1}
run "$FOREBAY" volume create -s -V 128M p/v
serve p

# Writes SEED: some blocks, whole and in part, and some zeros, here and there.
cat >scatter.py <<'P'
import os, random
draw = random.Random(int(os.environ["SEED"]))
h.connect_uri(os.environ["URI"])
for _ in range(200):
    at = draw.randrange(0, 100 << 20) // 512 * 512
    if draw.random() < 0.2:
        h.zero(draw.randrange(1, 64) * 4096, at // 4096 * 4096)
    elif draw.random() < 0.1:
        h.trim(draw.randrange(1, 16) * 4096, at // 4096 * 4096)
    else:
        h.pwrite(draw.randbytes(draw.choice([512, 4096, 20480])), at)
h.flush()
P
# Copies from URI to FILE what bitmap NAME calls dirty, and says how much that was.
cat >increment.py <<'P'
import os
name = "qemu:dirty-bitmap:" + os.environ["NAME"]
h.add_meta_context(name)
h.add_meta_context("base:allocation")
h.connect_uri(os.environ["URI"])
assert h.can_meta_context(name) and h.can_meta_context("base:allocation")
size, at, copied, contexts = h.get_size(), 0, 0, set()
with open(os.environ["FILE"], "r+b") as out:
    while at < size:
        dirty = []
        def extents(context, offset, entries, error):
            contexts.add(context)
            if context == name:
                dirty.extend(zip(entries[0::2], entries[1::2]))
        h.block_status(min(size - at, 64 << 20), at, extents)
        assert dirty, "an answer without extents"
        for length, flags in dirty:
            assert flags in (0, 1)
            for part in range(at, at + length if flags else at, 1 << 20):
                data = h.pread(min(1 << 20, at + length - part), part)
                out.seek(part)
                out.write(data)
                copied += len(data)
            at += length
assert contexts == {name, "base:allocation"}, contexts
print(copied)
P
scatter() { SEED=$1 URI=$(uri p/v) PATH=/usr/bin:$PATH run nbdsh -c 'exec(open("scatter.py").read())'; }
increment() { NAME=$1 URI=$(uri "p/$2") FILE=$3 PATH=/usr/bin:$PATH nbdsh -c 'exec(open("increment.py").read())'; }
whole() { run nbdcopy "$(uri "p/$1")" "$2"; }

say "three generations"
for day in 1 2 3; do
    scatter "$day"
    run "$FOREBAY" volume snapshot "p/v@day$day"
done
whole v@day1 backup
cp backup long
for day in 2 3; do
    copied=$(increment "day$((day - 1))" "v@day$day" backup) || fail "the increment of day $day"
    [ "$copied" -gt 0 ] && [ "$copied" -lt $((24 << 20)) ] || fail "$copied bytes were copied for day $day"
    whole "v@day$day" truth
    run cmp backup truth
done
run increment day1 v@day3 long
run cmp long truth

say "which bitmaps there are"
# bitmaps EXPORT: how many libnbd lists.
bitmaps() {
    nbdinfo --json "$(uri "p/$1")" | jq '[.exports[0].contexts[] | select(startswith("qemu:dirty-bitmap:"))] | length'
}
[ "$(bitmaps v@day1)" = 0 ] || fail "the oldest snapshot has a bitmap"
[ "$(bitmaps v@day3)" = 2 ] || fail "day3 has $(bitmaps v@day3) bitmaps"
[ "$(bitmaps v)" = 3 ] || fail "the volume has $(bitmaps v) bitmaps"
nbdinfo --map=qemu:dirty-bitmap:day9 "$(uri p/v)" >/dev/null 2>&1 && fail "a bitmap of no snapshot"

say "QEMU: the same extents, and a backup in a chain of images"
nbdinfo --map=qemu:dirty-bitmap:day2 --json "$(uri p/v@day3)" | jq -c '.[] | select(.type == 1) | [.offset, .length]' >by-libnbd
image=driver=nbd,server.type=unix,server.path=$SOCKET,export=p/v@day3,x-dirty-bitmap=qemu:dirty-bitmap:day2
# With that option, QEMU shows what is dirty as what holds no data.
qemu-img map --output=json --image-opts "$image" | jq -c '.[] | select(.data | not) | [.start, .length]' >by-qemu
run cmp by-libnbd by-qemu
whole v@day2 base.raw
run qemu-img create -q -f qcow2 -F raw -b "$(uri p/v@day3)" day3.qcow2
while read -r extent; do
    qemu-io -C -f qcow2 -c "read -q $(jq -r '"\(.[0]) \(.[1])"' <<<"$extent")" day3.qcow2 || fail "qemu-io: $extent"
done <by-qemu
run qemu-img rebase -u -f qcow2 -F raw -b base.raw day3.qcow2
run qemu-img compare -q -f qcow2 -F raw day3.qcow2 "$(uri p/v@day3)"

say "the volume itself: what is not committed yet counts too"
whole v@day3 live
scatter 4
run increment day3 v live
whole v truth
run cmp live truth

say "a snapshot that is destroyed while a client asks about it, and another of its name"
run "$FOREBAY" volume snapshot p/v@brief
cat >brief.py <<'P'
import os, subprocess
name = "qemu:dirty-bitmap:brief"
h.add_meta_context(name)
h.connect_uri(os.environ["URI"])
def dirty():
    found = []
    h.block_status(64 << 20, 0, lambda context, offset, entries, error: found.extend(entries[1::2]))
    return any(found)
assert not dirty(), "nothing has changed yet"
h.pwrite(b"x" * 4096, 0)
assert dirty()
for verb in ["destroy", "snapshot"]:
    subprocess.run([os.environ["FOREBAY"], "volume", verb, "p/v@brief"], check=True)
try:
    print("the new snapshot is taken for the old one: dirty is", dirty())
except nbd.Error as error:
    assert error.errno == "EINVAL", error
    print("refused")
P
refused=$(URI=$(uri p/v) FOREBAY=$FOREBAY PATH=/usr/bin:$PATH nbdsh -c 'exec(open("brief.py").read())') ||
    fail "brief.py: $refused"
[ "$refused" = refused ] || fail "$refused"
run "$FOREBAY" volume destroy p/v@brief

say "after kill -9, a rollback and a destroyed snapshot between"
kill_server
serve p
cp backup again
run increment day3 v again
whole v truth
run cmp again truth
run "$FOREBAY" volume destroy p/v@day2
whole v@day1 again
run increment day1 v@day3 again
whole v@day3 truth
run cmp again truth
run "$FOREBAY" volume rollback p/v@day3
[ "$(increment day3 v again)" = 0 ] || fail "a volume that was just rolled back differs from its snapshot"
stop_server
pass "increments of three days equal whole copies, by libnbd and QEMU"
