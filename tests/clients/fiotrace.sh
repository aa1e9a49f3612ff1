#!/usr/bin/env bash
# One random run of fio, recorded by fio's own log, by 'forebay trace record' and by blktrace where it is
# installed: 'forebay trace' finds the same pattern and the same seeks in all of them (root).
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/patterns.lib.sh"
need fio losetup unshare python3
[ "$(id -u)" = 0 ] || skip "recording a block device needs root"
begin
truncate -s 64M disk
LOOP=$(losetup --find --show "$DIR/disk" 2>/dev/null) || skip "there is no loop device"
undo "free_loop $LOOP '$DIR/disk'"
cat >inside <<'END'
# Each may be mounted already.
mounted() { [ -e "$2/$3" ] || mount -t "$1" nodev "$2"; }
mounted tracefs /sys/kernel/tracing trace_clock && mounted debugfs /sys/kernel/debug block || exit 77
"$FOREBAY" trace record "$LOOP" --out own.fbt 2>own.err &
OWN=$!
trap 'kill -INT $OWN $BLKTRACE 2>/dev/null' EXIT
while kill -0 $OWN 2>/dev/null && ! grep -q recording own.err; do sleep 0.1; done
# blktrace makes its files when the kernel has let it in. Another one may have the kernel's buffers for a while.
BLKTRACE=
begin_blktrace() {
    blktrace -d "$LOOP" -D "$PWD" -o blk >blk.out 2>&1 &
    BLKTRACE=$!
    while kill -0 $BLKTRACE 2>/dev/null; do
        if ls blk.blktrace.* >/dev/null 2>&1 && ! grep -q FAILED blk.out; then return 0; fi
        sleep 0.1
    done
    BLKTRACE=
    return 1
}
if command -v blktrace >/dev/null; then
    until begin_blktrace || ! grep -qi 'busy' blk.out; do sleep 0.5; done
fi
sleep 0.5
fio --name=random --filename="$LOOP" --rw=randrw --percentage_random=70 --bsrange=4k-32k --direct=1 \
    --iodepth=1 --ioengine=io_uring --number_ios=2000 --size=64m --randseed=7 --write_iolog=fio.log >fio.out 2>&1 || exit 1
sleep 0.5
kill -INT $OWN $BLKTRACE
wait
END
unshare --mount env FOREBAY="$FOREBAY" LOOP="$LOOP" sh inside 2>inside.err
case $? in
0) ;;
77) skip "tracefs and debugfs cannot be mounted" ;;
*) fail "the run: $(tail -n 3 inside.err fio.out own.err)" ;;
esac
sources=(fio.log own.fbt)
if ls blk.blktrace.* >/dev/null 2>&1; then
    sources+=(blk)
else
    say "SKIPPED: blktrace is not installed, or the kernel does not let it in: $(tail -n 1 blk.out 2>/dev/null)"
fi
same_patterns "${sources[@]}"
pass "${#sources[@]} recordings of one run have one pattern"
