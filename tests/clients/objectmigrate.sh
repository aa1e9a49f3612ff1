#!/usr/bin/env bash
# A pool moves from a disk into an object store and back while it is written to: the one is attached, or takes the
# other's place, and what was answered is there.
. "$(dirname "$0")/lib.sh"
need jq python3 nbdcopy
begin
files 1G d0 d1
files 256M l0 l1
STORE="file://$DIR/store?size=1G"
run "$FOREBAY" pool create -o txg_timeout=1 p "$DIR/d0" log mirror "$DIR/l0" "$DIR/l1"
run "$FOREBAY" volume create -V 64M p/busy
run "$FOREBAY" volume create -V 128M p/image
random_file image 128M
serve p
run nbdcopy --flush image "$(uri p/image)"
data() { "$FOREBAY" pool status --json p | jq -r '[.pools[0].groups[] | recurse(.children[]) | select(.children == []) | .name] | join(" ")'; }
unchanged() {
    [ "$(hash_of image)" = "$(hash_volume p/image)" ] || fail "the image has changed $1"
    scrub_clean p
}

say "refusals: a store is no log device"
refuse "$FOREBAY" pool replace p "$DIR/l0" "$STORE"
refuse "$FOREBAY" pool attach p "$DIR/l0" "$STORE"
refuse "$FOREBAY" pool attach p "$DIR/d0" "file://$DIR/other?size=64M"

say "from the disk into the store: the store is attached, and the disk detached"
run "$FOREBAY" pool set device_timeout=3600 p
load 1
run "$FOREBAY" pool attach -w p "$DIR/d0" "$STORE"
[ "$(health)" = ONLINE ] || fail "the pool is $(health): $("$FOREBAY" pool status p)"
goes_on "$DIR/told" 500 "the writer, with both"
say "the store is away with both: it is given up, and taken back"
mv "$DIR/store" "$DIR/away"
run "$FOREBAY" pool set device_timeout=5 p
given_up() { [ "$(health)" = DEGRADED ]; }
await 30 "the store is given up" given_up
goes_on "$DIR/told" 500 "the writer, without the store"
mv "$DIR/away" "$DIR/store"
run "$FOREBAY" pool set device_timeout=3600 p
# Requests that were given up have to end first.
await 30 "the store is taken back" "$FOREBAY" pool online p "$STORE"
run "$FOREBAY" pool wait p
[ "$(health)" = ONLINE ] || fail "the pool is $(health): $("$FOREBAY" pool status p)"
run "$FOREBAY" pool detach p "$DIR/d0"
loaded "the way into the store"
[ "$(data)" = "$STORE" ] || fail "the pool is in $(data)"
refuse "$FOREBAY" pool remove p mirror-1
[ "$(hash_of image)" = "$(hash_volume p/image)" ] || fail "the image has changed in the store"
kill_server
rm "$DIR/d0"
serve p
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
unchanged "without the disk"

say "back to a disk: it takes the place of the store"
load 2
run "$FOREBAY" pool replace -w p "$STORE" "$DIR/d1"
loaded "the way back"
[ "$(data)" = "$DIR/d1" ] || fail "the pool is in $(data)"
kill_server
rm -r "$DIR/store"
serve p
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
unchanged "on the disk"
stop_server
pass "into an object store and back, under load"
