#!/usr/bin/env bash
# Events and hooks of the real binary: a device that leaves and returns and a scrub are told of, to a command
# that follows and to a hook; a hook that hangs holds up neither writes nor commands.
. "$(dirname "$0")/lib.sh"
need python3
begin
files 128M d0 d1
run "$FOREBAY" pool create -f p mirror "$DIR"/d{0,1}
run "$FOREBAY" volume create -V 64M p/v
mkdir -p "$FOREBAY_STATE_DIR/hooks"
chmod 700 "$FOREBAY_STATE_DIR/hooks"
hook() {
    printf '#!/bin/sh\n%s\n' "$2" >"$FOREBAY_STATE_DIR/hooks/$1"
    chmod 700 "$FOREBAY_STATE_DIR/hooks/$1"
}
hook 10-notes "cat >>$DIR/hooked"
serve p
"$FOREBAY" pool events -f --json p >"$DIR/followed" 2>&1 &
follower=$!
undo "kill $follower"
run "$FOREBAY" pool offline p "$DIR/d1"
run "$FOREBAY" pool online p "$DIR/d1"
await 20 "the end of the resilver, and a scrub" "$FOREBAY" pool scrub -w p
told() { grep -q "\"event\":\"$1\".*$2" "$3"; }
for place in followed hooked; do
    await 20 "$place: the device that went offline" told state-changed OFFLINE "$DIR/$place"
    await 20 "$place: the device's path" told state-changed "\"device\":\"$DIR/d1\"" "$DIR/$place"
    await 20 "$place: the end of the scrub" told scan-ended "scrub is complete" "$DIR/$place"
done
kill $follower
"$FOREBAY" pool events p >"$DIR/listed"
grep -q 'state-changed: .*OFFLINE' "$DIR/listed" || fail "not in the list: $(cat "$DIR/listed")"
# Each line is JSON, and the numbers have no gap.
python3 - "$DIR/hooked" <<'END' || fail "what the hook got: $(cat "$DIR/hooked")"
import json, sys
events = [json.loads(line) for line in open(sys.argv[1])]
numbers = [event["sequence"] for event in events]
assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers
assert all(event["pool"] == "p" and event["version"] == 1 for event in events)
END

# A hook that hangs.
undo 'kill $(cat "$DIR/hanging")'
hook 05-hangs "echo \$\$ >>$DIR/hanging; exec sleep 1000"
run "$FOREBAY" pool offline p "$DIR/d1"
hangs() { [ -s "$DIR/hanging" ]; }
await 20 "the hook that hangs" hangs
python3 "$HERE/ledger.py" write "$SOCKET" p/v "$DIR/ledger" --seconds 3 --told "$DIR/told" >"$DIR/writer" 2>&1 &
writer=$!
goes_on "$DIR/told" 100 "the writer beside a hook that hangs"
run timeout 10 "$FOREBAY" pool online p "$DIR/d1"
run timeout 10 "$FOREBAY" pool status p
wait $writer || fail "the writer: $(cat "$DIR/writer")"
alive
stop_server
pass "$(wc -l <"$DIR/hooked") events for the hook, $(cat "$DIR/told") answers beside one that hangs"
