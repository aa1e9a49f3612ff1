#!/usr/bin/env bash
# One random run of fio in a Debian guest, recorded by blktrace, by 'forebay trace record' and by fio's own
# log: one pattern, the same seeks. Kernels under lockdown keep blktrace out, the guest's does not.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/guest.lib.sh"
. "$(dirname "$0")/patterns.lib.sh"
need fio blktrace python3
begin
need_guest
cat >"$DIR/main" <<'END_OF_MAIN'
mount -t debugfs none /sys/kernel/debug
mount -t tracefs none /sys/kernel/tracing 2>/dev/null
mkdir -p /tmp/out && cd /tmp/out
forebay trace record /dev/vda --out own.fbt 2>own.err &
OWN=$!
blktrace -d /dev/vda -D /tmp/out -o blk >blk.out 2>&1 &
BLKTRACE=$!
while kill -0 $OWN 2>/dev/null && ! grep -q recording own.err; do sleep 0.1; done
while kill -0 $BLKTRACE 2>/dev/null && [ ! -e blk.blktrace.0 ]; do sleep 0.1; done
sleep 1
fio --name=random --filename=/dev/vda --rw=randrw --percentage_random=70 --bsrange=4k-32k --direct=1 \
    --iodepth=1 --ioengine=psync --number_ios=2000 --size=64m --randseed=7 --write_iolog=fio.log >fio.out 2>&1
sleep 1
kill -INT $OWN $BLKTRACE
wait
cat own.err blk.out
tail -n 2 fio.out
tar cf /dev/vdb .
END_OF_MAIN
: >"$DIR/console"
cp "$FOREBAY" "$DIR/forebay"
make_guest "$DIR/forebay" "$(command -v fio)" "$(command -v blktrace)"
truncate -s 64M disk results
eval "set -- $(guest_command)"
"$@" -drive "if=none,id=d,file=$DIR/disk,format=raw" -device virtio-blk-pci,drive=d \
    -drive "if=none,id=r,file=$DIR/results,format=raw" -device virtio-blk-pci,drive=r >"$DIR/qemu.out" 2>&1 &
GUEST_PID=$!
undo "kill -9 $GUEST_PID"
await 300 "the guest has finished: $(tail -n 5 "$DIR/console")" grep -q 'guest: the end' "$DIR/console"
ended $GUEST_PID "the guest"
tar xf results 2>/dev/null || fail "there are no recordings: $(tail -n 20 "$DIR/console")"
ls blk.blktrace.* >/dev/null 2>&1 || fail "blktrace has recorded nothing: $(cat blk.out)"
same_patterns fio.log own.fbt blk
pass "blktrace, the kernel's tracing and fio's log have one pattern"
