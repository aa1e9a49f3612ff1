#!/usr/bin/env bash
# Devices go, rot and come back while clients work: nothing is lost, nothing is wrong, and a scrub
# finds nothing left to repair.
. "$(dirname "$0")/lib.sh"
need python3 nbdcopy jq
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
pass "offline, rot, replace, missing and cut devices"
