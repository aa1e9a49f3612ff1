#!/usr/bin/env bash
# Memory that is not to be had: the server's data segment is bounded under load, a little above what it
# has at that moment, so that some allocation fails, a different one in each round. It may end by that, as by
# kill -9, or go on with errors; what was answered as durable is there, each time, and a scrub is clean.
. "$(dirname "$0")/lib.sh"
need python3 prlimit nbdcopy
begin
ROUNDS=$(longer 3 12)
# Bounded from the start too: the allocator would reserve a gigabyte, and never ask again.
printf '#!/bin/sh\nexec prlimit --data=%d "%s" "$@"\n' $((900 << 20)) "$FOREBAY" >"$RUN/bounded"
chmod +x "$RUN/bounded"
FOREBAY=$RUN/bounded
files 512M d0 d1
files 64M l0
run "$FOREBAY" pool create -f p mirror "$DIR"/d{0,1} log "$DIR/l0"
run "$FOREBAY" volume create -V 64M p/v
run "$FOREBAY" volume create -V 64M p/large
random_file large 67108864
# Readers who take no replies: up to 64 MiB is kept for each. Until they are told to go.
cat >"$RUN/readers.py" <<'END'
import socket, struct, sys, time
held = []
try:
    for _ in range(8):
        s = socket.socket(socket.AF_UNIX)
        s.connect(sys.argv[1])
        s.recv(18, socket.MSG_WAITALL)
        s.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 7) + b"p/large")
        s.recv(10, socket.MSG_WAITALL)
        for i in range(64):
            s.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, i, i << 20, 1 << 20))
        held.append(s)
        time.sleep(0.05)
except OSError:
    pass
time.sleep(600)
END
serve p
run nbdcopy --flush large "$(uri p/large)"
stop_server
ended_itself=0
went_on=0
for round in $(seq "$ROUNDS"); do
    serve p
    rm -f "$DIR/told"
    python3 "$HERE/ledger.py" write "$SOCKET" p/v "$DIR/ledger" --seconds 600 --told "$DIR/told" \
        --expect-end --expect-error --seed "$round" --connections 4 --depth 8 --flush-every 8 --span $((16 << 20)) >"$DIR/writer.out" 2>&1 &
    writer=$!
    goes_on "$DIR/told" 100 "the writer"
    has=$(awk '/^VmData/ { print $2 }' "/proc/$SERVER/status")
    run prlimit --pid "$SERVER" --data=$(((has + round * 3000) * 1024))
    python3 "$RUN/readers.py" "$SOCKET" >"$DIR/readers.out" 2>&1 &
    readers=$!
    disown $readers
    # As long as the readers may take to have it fail.
    for _ in $(seq 300); do
        lives "$SERVER" || break
        sleep 0.1
    done
    kill -9 $readers
    if lives "$SERVER"; then
        went_on=$((went_on + 1))
        kill_server
    else
        grep -q 'allocat' "$SERVE_LOG" || fail "round $round: it ended for another reason: $(tail -n 5 "$SERVE_LOG")"
        ended_itself=$((ended_itself + 1))
        SERVER=
    fi
    wait $writer || fail "round $round, the writer: $(cat "$DIR/writer.out")"
    serve p
    python3 "$HERE/ledger.py" check "$SOCKET" p/v "$DIR/ledger" >"$DIR/check.out" 2>&1 ||
        fail "round $round: $(cat "$DIR/writer.out" "$DIR/check.out")"
    kill_server
done
# A test in which nothing failed shows nothing.
[ "$ended_itself" -gt 0 ] || fail "no allocation failed in $ROUNDS rounds"
serve p
scrub_clean p
stop_server
pass "$ROUNDS rounds, $ended_itself ended by an allocation, $went_on went on to the end: $(tail -n 1 "$DIR/check.out")"
