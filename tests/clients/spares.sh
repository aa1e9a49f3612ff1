#!/usr/bin/env bash
# A hot spare takes the place of a device that is deleted under load, and with autoreplace an empty
# file at the path of another takes its place. Nothing is lost, and the pool is ONLINE again. Spares in
# the places of all devices that the list of known pools had are found by the next server.
. "$(dirname "$0")/lib.sh"
need python3 jq
begin
files 256M d0 d1 d2 d3 spare
files 64M l0
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2,3} log "$DIR/l0" spare "$DIR/spare"
run "$FOREBAY" volume create -V 96M p/busy
serve p
well() { [ "$(health)" = ONLINE ]; }
says() { "$FOREBAY" pool status p | grep -q "$1"; }
await 10 "the spare is held" says "spare *AVAIL"
refuse "$FOREBAY" pool create q "$DIR/spare"
refuse "$FOREBAY" pool add p spare "$DIR/d0"

say "a member is deleted under load: the spare takes its place"
load 1
rm d1
await 60 "the spare is taken" says "spare *ONLINE"
await 60 "the pool is well again" well
loaded "the spare"
says "/d1 " && fail "d1 is still a member: $("$FOREBAY" pool status p)"
"$FOREBAY" pool events p | grep -q "takes the place of" || fail "no event: $("$FOREBAY" pool events p)"

say "the server is killed: the next one finds the spare where the configuration has it"
kill_server
serve p
await 30 "the pool is well" well
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"

say "autoreplace: an empty file at the path of a member that was deleted"
run "$FOREBAY" pool set autoreplace=on p
load 2
rm d2
await 30 "d2 is missed" sh -c "'$FOREBAY' pool list | grep -q DEGRADED"
truncate -s 256M d2
await 60 "the pool is well again" well
loaded "autoreplace"
# Both hold their share: another member goes.
run "$FOREBAY" pool offline p "$DIR/d0"
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
run "$FOREBAY" pool online p "$DIR/d0"
run "$FOREBAY" pool resilver -w p
scrub_clean p

say "kill -9, and a server that finds all of it"
truncate -s 256M other
run "$FOREBAY" pool add p spare "$DIR/other"
kill_server
serve p
await 10 "the new spare is held" says "other *AVAIL"
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
run "$FOREBAY" pool remove p "$DIR/other"
says "/other" && fail "the spare is still there: $("$FOREBAY" pool status p)"
alive
stop_server

say "spares take the places of both sides of a mirror: the next server knows where they are"
files 256M m0 m1 s0 s1
run "$FOREBAY" pool export p
rm "$DIR/ledger"
run "$FOREBAY" pool create p mirror "$DIR"/m{0,1} spare "$DIR"/s{0,1}
run "$FOREBAY" volume create -V 96M p/busy
serve p
load 3
# gone MEMBER SPARES: until the pool is well, with so many spares as members.
gone() {
    rm "$1"
    await 60 "a spare is taken" sh -c "[ \"\$('$FOREBAY' pool status p | grep -c 's[01] *ONLINE')\" = $2 ]"
    await 60 "the pool is well again" well
}
gone m0 1
gone m1 2
loaded "the spares"
alive
stop_server
serve p
well || fail "the pool is not well: $("$FOREBAY" pool status p)"
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
alive
stop_server
pass "spares and a new device took the places of deleted ones"
