#!/usr/bin/env bash
# Devices go, rot and come back while clients work: nothing is lost, nothing is wrong, and a scrub
# finds nothing left to repair.
. "$(dirname "$0")/lib.sh"
need python3 nbdcopy jq
need_nbd_shell
begin
files 256M d0 d1 d2 d3 spare
files 64M l0 l1
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2,3} log mirror "$DIR"/l{0,1}
run "$FOREBAY" volume create -V 96M p/still
run "$FOREBAY" volume create -V 96M p/busy
random_file image 96M
WANT=$(hash_of image)
serve p
run nbdcopy --flush image "$(uri p/still)"
still() { [ "$(hash_volume p/still)" = "$WANT" ] || fail "$1: the volume reads differently"; }
still "at first"

say "offline and online under load"
load 1
run "$FOREBAY" pool offline p "$DIR/d1"
[ "$(health)" = DEGRADED ] || fail "one device offline, and the pool is $(health)"
still "without d1"
run "$FOREBAY" pool online p "$DIR/d1"
loaded "offline and online"
run "$FOREBAY" pool resilver -w p
await 30 "the pool is well again" sh -c "'$FOREBAY' pool list | grep -q ONLINE"
still "after the resilver"
# d1 must really hold its share now: another one goes.
run "$FOREBAY" pool offline p "$DIR/d3"
still "on the resilvered device"
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
refuse "$FOREBAY" pool offline p "$DIR/d0"
run "$FOREBAY" pool online p "$DIR/d3"
run "$FOREBAY" pool resilver -w p
scrub_clean p

say "rot under a reader"
python3 - "$DIR/d2" <<'P'
import os, random, sys
rng = random.Random(5)
with open(sys.argv[1], "r+b") as device:
    size = os.fstat(device.fileno()).st_size
    # The labels at both ends are another test's business.
    for _ in range(400):
        device.seek(rng.randrange(8 << 20, size - (8 << 20)) & ~511)
        device.write(rng.randbytes(4096))
P
still "with rot on d2"
run "$FOREBAY" pool scrub -w p
still "after the scrub"
"$FOREBAY" pool status p >status.1
grep -q 'No known data errors' status.1 || fail "the scrub could not repair: $(cat status.1)"
awk '$1 ~ /\/d2$/ && $5 > 0 { found = 1 } END { exit !found }' status.1 ||
    fail "rot was repaired and not counted: $(cat status.1)"
before=$(awk '$1 ~ /\/d2$/ { print $5 }' status.1)
run "$FOREBAY" pool scrub -w p
after=$("$FOREBAY" pool status p | awk '$1 ~ /\/d2$/ { print $5 }')
[ "$before" = "$after" ] || fail "a second scrub still finds rot: $before, then $after"

say "replace under load"
load 2
run "$FOREBAY" pool replace -w p "$DIR/d0" "$DIR/spare"
loaded "replace"
still "after a replace"
"$FOREBAY" pool status p | grep -q "/d0 " && fail "d0 is still a member: $("$FOREBAY" pool status p)"

say "kill -9, then a device is missing at import"
kill_server
mv d3 away
serve p
[ "$(health)" = DEGRADED ] || fail "a device is missing, and the pool is $(health)"
still "imported without d3"
load 2 3
loaded "without d3"
stop_server
say "and a device that lost its end"
mv away d3
serve p
run "$FOREBAY" pool resilver -w p
await 30 "the pool is well again" sh -c "'$FOREBAY' pool list | grep -q ONLINE"
scrub_clean p
stop_server
truncate -s 100M d2
serve p
still "imported with d2 cut short"
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
stop_server
rm -f d2
truncate -s 256M d2
serve p
run "$FOREBAY" pool replace -f -w p "$DIR/d2"
still "after a replace at the same path"
alive
scrub_clean p
[ "$(health)" = ONLINE ] || fail "the pool is $(health) in the end"
stop_server

say "a device that is being replaced is gone, and what it alone had is given up"
files 256M e0 e1 e2
files 64M m0
run "$FOREBAY" pool create q "$DIR"/e{0,1} log "$DIR/m0"
run "$FOREBAY" volume create -V 96M q/v
serve q
run nbdcopy --flush image "$(uri q/v)"
run "$FOREBAY" pool sync q
run "$FOREBAY" pool set scan_rate=1M q
run "$FOREBAY" pool replace q "$DIR/e0" "$DIR/e2"
kill_server
rm e0
devices=(-d "$DIR/e1" -d "$DIR/e2" -d "$DIR/m0")
refuse "$FOREBAY" pool import "${devices[@]}" q
grep -q 'use -f to give up what they alone have' "$DIR/.out" || fail "the refusal: $(cat "$DIR/.out")"
run "$FOREBAY" pool import -f "${devices[@]}" q
serve q
run "$FOREBAY" pool set scan_rate=auto q
in_place() {
    "$FOREBAY" pool status q >status.q && ! grep -q replacing status.q
}
await 60 "e2 takes the place of e0" in_place
grep -q '[0-9] data errors' status.q || fail "no loss is told: $(cat status.q)"
nbd_shell -u "$(uri q/v)" -c '
import nbd
step, kept, lost = 4096, 0, 0
with open("image", "rb") as image:
    for at in range(0, h.get_size(), 4 * step):
        try:
            found = h.pread(step, at)
        except nbd.Error:
            lost += 1
            continue
        image.seek(at)
        assert found == image.read(step), f"offset {at} reads differently"
        kept += 1
assert kept > 0 and lost > 0, (kept, lost)
print(f"{kept} blocks are as they were, {lost} cannot be read")
' >kept 2>&1 || fail "what is left of q/v: $(cat kept)"
say "$(cat kept)"
run nbdcopy --flush image "$(uri q/v)"
[ "$(hash_volume q/v)" = "$WANT" ] || fail "q/v was written anew and reads differently"
# What is not committed yet lies over blocks that are lost still.
run "$FOREBAY" pool sync q
run "$FOREBAY" pool scrub -w q
"$FOREBAY" pool status q >status.q
grep -q 'No known data errors' status.q || fail "after a scrub: $(cat status.q)"
stop_server
pass "offline, rot, replace, missing and cut devices, a source that is given up"
