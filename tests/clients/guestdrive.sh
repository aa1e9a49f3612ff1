#!/usr/bin/env bash
# An NVMe drive (qemu's, in a guest): 'forebay qualify' reads its counters by smartctl and by nvme-cli, and
# purges it by NVMe Format. Ways that the drive does not offer, or that would erase another namespace, are
# refused, and nothing is written then. RECORD=FOLDER keeps what the programs print there.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/guest.lib.sh"
need python3 nvme smartctl
begin
need_guest
cat >"$DIR/main" <<'END'
fail() { echo "guest: FAIL: $*"; exit 1; }
marked() { dd if="$1" bs=512 skip=2200000 count=1 2>/dev/null | grep -q FOREBAY-MARK; }
mark() { printf FOREBAY-MARK | dd of="$1" bs=512 seek=2200000 conv=notrunc 2>/dev/null; sync; marked "$1"; }
show() { echo "guest: begin $1"; shift; "$@" 2>&1; echo; echo "guest: end"; }
ls /dev/nvme0n1 /dev/nvme1n1 /dev/nvme1n2 >/dev/null || fail "the drives are missing: $(ls /dev | tr '\n' ' ')"
show id-ctrl nvme id-ctrl /dev/nvme0n1 -o json
show list-ns nvme list-ns /dev/nvme0n1 -o json
show list-ns-2 nvme list-ns /dev/nvme1n1 -o json
show smart-log nvme smart-log /dev/nvme0n1 -o json
show smartctl smartctl -x --json /dev/nvme0n1
quick="--shrink 20 --only durable --plain"
mark /dev/nvme0n1 || fail "there is no mark"
mark /dev/nvme1n2 || fail "there is no mark on the neighbor"
# Refusals: nothing was touched, whatever the drive was asked.
refused() {
    local words=$1 drive=$2
    shift 2
    forebay qualify "$drive" $quick --destroy "$drive" --out "/tmp/refused.fbq" "$@" >/tmp/out 2>&1 &&
        fail "$* was not refused"
    grep -q "$words" /tmp/out || fail "$*: no '$words' in: $(cat /tmp/out)"
    [ ! -e /tmp/refused.fbq ] || fail "a refusal left a log"
    echo "guest: refused: $(tail -n 1 /tmp/out)"
}
refused 'does not offer NVMe Sanitize' /dev/nvme0n1 --purge nvme-sanitize
refused 'is no ATA drive' /dev/nvme0n1 --purge ata-secure-erase
marked /dev/nvme0n1 || fail "a refusal erased the drive"
forebay qualify /dev/nvme0n1 $quick --purge nvme-format >/tmp/out 2>&1 && fail "it purges without --destroy"
marked /dev/nvme0n1 || fail "a refusal erased the drive"
# The purge. The fill that follows would hide it, so that the mark lies behind what the fill may write.
forebay qualify /dev/nvme0n1 $quick --purge nvme-format --destroy /dev/nvme0n1 --out /tmp/a.fbq --json \
    >/tmp/a.json 2>/tmp/err || fail "qualify: $(cat /tmp/err)"
show qualify cat /tmp/a.json
grep counters /tmp/err
marked /dev/nvme0n1 && fail "the mark is still there"
# By nvme-cli alone.
mv /bin/smartctl /tmp
forebay qualify /dev/nvme0n1 --read-only --shrink 20 --plain --out /tmp/b.fbq 2>&1 | grep counters
mv /bin/nvme /tmp
forebay qualify /dev/nvme0n1 --read-only --shrink 20 --plain --out /tmp/c.fbq 2>&1 | grep counters
refused 'nvme is not installed' /dev/nvme0n1 --purge nvme-format
marked /dev/nvme1n2 || fail "the neighbor was erased"
echo "guest: all is well"
END
: >"$DIR/console"
cp "$FOREBAY" "$DIR/forebay"
make_guest "$DIR/forebay" "$(command -v nvme)" "$(command -v smartctl)"
truncate -s 1100M one two three
eval "set -- $(guest_command)"
"$@" -drive if=none,id=a,file="$DIR/one",format=raw -device nvme,serial=forebay-1,drive=a \
    -device nvme,serial=forebay-2,id=c2 \
    -drive if=none,id=b,file="$DIR/two",format=raw -device nvme-ns,drive=b,bus=c2 \
    -drive if=none,id=c,file="$DIR/three",format=raw -device nvme-ns,drive=c,bus=c2 >"$DIR/qemu.out" 2>&1 &
GUEST_PID=$!
disown $GUEST_PID
undo "kill -9 $GUEST_PID"
over() { ! lives $GUEST_PID || grep -q 'guest: FAIL\|guest: all is well' "$DIR/console"; }
await 400 "the guest is done: $DIR/console" over
tr -d '\r' <"$DIR/console" >console.txt
grep -q 'guest: all is well' console.txt || fail "$(grep 'guest: FAIL' console.txt || tail -n 5 console.txt)"
grep -a 'guest: refused\|^counters' console.txt
for name in id-ctrl list-ns list-ns-2 smart-log smartctl qualify; do
    sed -n "/^guest: begin $name\$/,/^guest: end/p" console.txt | sed '1d;$d' >"$name.json"
    [ -z "${RECORD:-}" ] || { mkdir -p "$RECORD" && cp "$name.json" "$RECORD/"; }
done
python3 - <<'END' || fail "the counters are not what they should be"
import json
run = json.load(open("qualify.json"))["qualification"]
kinds = [o["kind"] for o in run["outcomes"]]
assert kinds[0] == {"purge": {"way": "nvme_format"}}, kinds[0]
assert run["outcomes"][0]["measured"]["ended"] == "time", run["outcomes"][0]
health = run["health"]
assert len(health) >= 2 and health[0]["health"]["source"].startswith("smartctl"), health
first, last = (h["health"]["host_written"]["bytes"] for h in (health[0], health[-1]))
own = sum(o["measured"]["written_bytes"] for o in run["outcomes"])
unit = health[0]["health"]["host_written"]["unit_bytes"]
print(f"the drive counted {last - first:.0f} bytes of the host, the program {own}")
assert abs(last - first - own) <= 2 * unit, "the drive and the program do not count alike"
END
pass "a drive was purged and its counters were read; what it does not offer was refused"
