#!/usr/bin/env bash
# Clients that break the protocol lose their own connection and nothing else.
. "$(dirname "$0")/lib.sh"
need python3
begin
files 128M d0 d1
files 64M l0
run "$FOREBAY" pool create p mirror "$DIR"/d{0,1} log "$DIR/l0"
run "$FOREBAY" volume create -V 64M p/v
serve p
# A client that behaves works all the while, and its ledger must hold.
python3 "$HERE/ledger.py" write "$SOCKET" p/v "$DIR/ledger" --seconds 6 --span 33554432 \
    >"$DIR/writer.out" 2>&1 &
WRITER=$!
run timeout 300 python3 "$HERE/hostile.py" "$SOCKET" p/v
say "$(tail -n 1 "$DIR/.out")"
wait "$WRITER" || fail "the good client suffered: $(cat "$DIR/writer.out")"
alive
run python3 "$HERE/ledger.py" check "$SOCKET" p/v "$DIR/ledger"
alive
stop_server
pass "$(cat "$DIR/writer.out")"
