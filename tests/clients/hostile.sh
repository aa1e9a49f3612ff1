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
say "300 control connections that ask for nothing"
CONTROL=$(find "$RUN/state" -type s -name "*$SERVER*" | head -n 1)
[ -n "$CONTROL" ] || fail "no control socket in $RUN/state: $(ls "$RUN/state")"
python3 - "$CONTROL" >"$DIR/half-open.out" 2>&1 <<'P' &
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
held = []
for _ in range(300):
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    s.send(b"\0\0")
    held.append(s)
print("ready", flush=True)
time.sleep(600)
P
HALF_OPEN=$!
undo "kill -9 $HALF_OPEN"
await 30 "the half-open connections: $DIR/half-open.out" grep -q ready "$DIR/half-open.out"
for _ in 1 2 3; do run timeout 30 "$FOREBAY" pool status p; done
kill -9 "$HALF_OPEN"
wait "$HALF_OPEN" 2>/dev/null
wait "$WRITER" || fail "the good client suffered: $(cat "$DIR/writer.out")"
alive
run python3 "$HERE/ledger.py" check "$SOCKET" p/v "$DIR/ledger"
alive
stop_server
pass "$(cat "$DIR/writer.out")"
