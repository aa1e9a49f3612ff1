#!/usr/bin/env bash
# The machine loses power in the middle of 'forebay qualify' (a guest under qemu that is killed). After the next start
# the disks have each other's names; the same run goes on where it was, and nothing that it had measured is gone.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/guest.lib.sh"
need python3 mke2fs
begin
need_guest
MODULES+=(crc16 crc32c_generic libcrc32c mbcache jbd2 ext4)
cat >"$DIR/main" <<'END'
fail() { echo "guest: FAIL $*"; exit; }
disk() { for d in /sys/block/vd*; do [ "$(cat "$d/serial")" = "$1" ] && echo "/dev/${d##*/}"; done; }
device=$(disk log-device)
mount -t ext4 "$(disk results)" /mnt || fail "the results: $(dmesg | tail -n 3)"
run="--destroy $device --for wal --only durable --shrink 2 --plain --json --out /mnt/run.fbq"
[ ! -e /mnt/run.fbq ] || run="$run --resume"
echo "guest: found $(cat /mnt/run.fbq 2>/dev/null | wc -l) lines, the device is $device"
while sleep 0.2; do echo "guest: $(wc -l </mnt/run.fbq) lines"; done 2>/dev/null &
forebay qualify "$device" $run >/tmp/run.json 2>/tmp/err || fail "qualify: $(cat /tmp/err)"
echo "guest: begin result"
cat /tmp/run.json
echo
echo "guest: end"
echo "guest: begin log"
cat /mnt/run.fbq
echo "guest: end"
umount /mnt
echo "guest: all is well"
END
cp "$FOREBAY" "$DIR/forebay"
make_guest "$DIR/forebay"
truncate -s 300M log-device results
mke2fs -q -F -t ext4 results

printed() { grep -ao "guest: [0-9]* lines" "$DIR/console" | tail -n 1 | grep -o '[0-9]*'; }
is_under_way() { ! lives $GUEST_PID || grep -q 'guest: FAIL' "$DIR/console" || [ "$(printed || echo 0)" -ge 6 ]; }

boot_guest log-device results
await 300 "steps are done: $DIR/console" is_under_way
kill -9 $GUEST_PID
lines=$(printed) || fail "$(tail -n 20 "$DIR/console")"
grep -q 'found 0 lines, the device is /dev/vda' console || fail "$(tail -n 20 "$DIR/console")"
say "cut when $lines lines were in the log"
await 60 "the guest is gone" eval "! lives $GUEST_PID"
boot_guest results log-device
await 600 "the guest ends: $DIR/console" guest_is_over
grep -q 'guest: all is well' console || fail "$(tail -n 20 "$DIR/console"; cat "$DIR/qemu.out")"
tr -d '\r' <console >console.txt
grep -q 'the device is /dev/vdb' console.txt || fail "the disks have the names that they had"
LINES=$lines python3 - <<'END' || fail "the run did not go on"
import json, os, re

text = open("console.txt").read()
# What counts lines meanwhile writes between them.
part = lambda name: re.sub(r"guest: \d+ lines\n", "", re.search(f"guest: begin {name}\n(.*?)guest: end", text, re.S)[1])
cut = int(os.environ["LINES"])
found = int(re.search(r"guest: found (\d+) lines", text)[1])
assert found >= cut, f"{cut} lines were there before the cut, {found} after it"
run = json.loads(part("result"))["qualification"]
steps = run["plan"]["steps"]
assert run["verdict"] and len(run["resumed_s"]) == 1, (run["verdict"], run["resumed_s"])
assert len(run["outcomes"]) == len(steps), (len(run["outcomes"]), len(steps))
records = [json.loads(line.split(" ", 3)[3]) for line in part("log").splitlines() if line.startswith("forebay-qualify/1 ")]
resumed = [at for at, record in enumerate(records) if "resumed" in record]
assert resumed == [found], (resumed, found)
print(f"{found} lines were found, {len(steps)} steps are there")
END
pass "the run went on after the power cut"
