#!/usr/bin/env bash
# ext4, XFS and Btrfs on a volume, the server killed under them: the file system is whole afterwards, and
# every file whose fsync returned is there. Btrfs has checksums of its own: its scrub finds nothing.
. "$(dirname "$0")/lib.sh"
need python3 mkfs.ext4 e2fsck
need_mounts
begin
ROUNDS=$(longer 2 8)
files 256M d0 d1 d2 d3
files 128M l0 l1
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2,3} log mirror "$DIR"/l{0,1}
tested=""

# The writer notes a file's name and checksum only after fsync of the file and of its folder.
cat >"$DIR/writer.py" <<'P'
import hashlib, os, random, sys
folder, ledger, seed = sys.argv[1:4]
rng = random.Random(seed)
out = open(ledger, "a")
ring = []
number = 0
while True:
    number += 1
    name = "%s-%06d" % (seed, number)
    data = rng.randbytes(rng.choice([100, 4096, 20000, 300000]))
    try:
        fd = os.open(folder + "/" + name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view):]
        os.fsync(fd)
        os.close(fd)
        top = os.open(folder, os.O_RDONLY)
        os.fsync(top)
        os.close(top)
    except OSError as error:
        print("ended by", error)
        break
    out.write("+ %s %s\n" % (name, hashlib.sha256(data).hexdigest()))
    out.flush()
    ring.append(name)
    if len(ring) > 150:
        # Bounded space; noted before, because an unlink may last without its fsync.
        victim = ring.pop(0)
        out.write("- %s x\n" % victim)
        out.flush()
        try:
            os.unlink(folder + "/" + victim)
        except OSError:
            break
P
cat >"$DIR/reader.py" <<'P'
import hashlib, sys
folder, ledger = sys.argv[1:3]
want = {}
for line in open(ledger):
    sign, name, digest = line.split()
    if sign == "+":
        want[name] = digest
    else:
        want.pop(name, None)
bad = 0
for name, digest in want.items():
    try:
        got = hashlib.sha256(open(folder + "/" + name, "rb").read()).hexdigest()
    except OSError as error:
        got = str(error)
    if got != digest:
        print(name, "is lost or wrong:", got)
        bad += 1
print(len(want), "files checked,", bad, "bad")
sys.exit(1 if bad or not want else 0)
P

# known KIND: whether the kernel and the programs are here.
known() {
    if ! grep -qw "$1" /proc/filesystems && ! modprobe "$1" 2>/dev/null; then
        say "skip $1: this kernel has none"
        return 1
    fi
    command -v "mkfs.$1" >/dev/null 2>&1 || { say "skip $1: mkfs.$1 is not installed"; return 1; }
}
lines_of() { wc -l 2>/dev/null <"$1" || echo 0; }
has_lines() { [ "$(lines_of "$1")" -ge "$2" ]; }

# Programs of Btrfs look at all that is mounted, and fail on a loop device whose server another test has
# just killed: they see only this test's mounts.
by_itself() {
    unshare -m bash -c 'own=$1; shift
        while read -r _ at _; do
            case $at in "$own"/*) ;; /tmp/fb.*) umount -l "$at" ;; esac
        done </proc/self/mounts
        exec "$@"' - "$RUN" "$@"
}

under() {
    local kind=$1 make=$2 verify=$3
    local volume="p/$kind"
    run "$FOREBAY" volume create -V 330M -s "$volume"
    serve p
    attach "$volume"
    # shellcheck disable=SC2086
    run $make "$LOOP"
    mount_volume
    for round in $(seq "$ROUNDS"); do
        python3 "$DIR/writer.py" "$RUN/mnt" "$DIR/$kind.ledger" "$round" >"$DIR/writer.out" 2>&1 &
        local writer=$!
        local before
        before=$(lines_of "$DIR/$kind.ledger")
        await 120 "files are synced on $kind: $DIR/writer.out" \
            has_lines "$DIR/$kind.ledger" $((before + $(longer 40 200)))
        alive
        kill_server
        # A file system that cannot write would try again for long; after a power cut nobody is there to.
        if [ "$kind" = xfs ]; then xfs_io -x -c shutdown "$RUN/mnt" >/dev/null 2>&1; fi
        for _ in $(seq 100); do kill -0 $writer 2>/dev/null || break; sleep 0.1; done
        kill -9 $writer 2>/dev/null
        wait $writer 2>/dev/null
        detach
        serve p
        attach "$volume"
        # The journal is replayed by a mount; after that the check must find nothing to do.
        mount_volume
        run umount "$RUN/mnt"
        # shellcheck disable=SC2086
        run $verify "$LOOP"
        mount_volume
        run python3 "$DIR/reader.py" "$RUN/mnt" "$DIR/$kind.ledger"
        if [ "$kind" = btrfs ]; then
            btrfs scrub start -B "$RUN/mnt" >"$DIR/scrub.out" 2>&1 && grep -q 'no errors found' "$DIR/scrub.out" ||
                fail "scrub of Btrfs: $(cat "$DIR/scrub.out")"
        fi
        say "$kind, kill $round: $(cat "$DIR/.out")"
        tested="$(cat "$DIR/.out")"
    done
    run umount "$RUN/mnt"
    detach
    alive
    scrub_clean p
    stop_server
    run "$FOREBAY" volume destroy "$volume"
}
under ext4 "mkfs.ext4 -q -F -E lazy_itable_init=0" "e2fsck -fn"
if known xfs; then under xfs "mkfs.xfs -q -f" "xfs_repair -n"; fi
if known btrfs; then under btrfs "by_itself mkfs.btrfs -q -f" "by_itself btrfs check --readonly"; fi
pass "fsck clean after every kill; last: $tested"
