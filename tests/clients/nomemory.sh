#!/usr/bin/env bash
# Memory that is not to be had: the server's address space is bounded under load, a little above what it
# has at that moment, so that some allocation fails, a different one in each round. It may end by that, as by
# kill -9, or go on with errors; what was answered as durable is there, each time, and a scrub is clean.
. "$(dirname "$0")/lib.sh"
need python3 prlimit nbdcopy
begin
ROUNDS=$(longer 4 24)
# Bounded from the start too: the allocator would reserve a gigabyte, and never ask again.
printf '#!/bin/sh\nexec prlimit --data=%d "%s" "$@"\n' $((900 << 20)) "$FOREBAY" >"$RUN/bounded"
chmod +x "$RUN/bounded"
FOREBAY=$RUN/bounded
files 512M d0 d1
files 64M l0
run "$FOREBAY" pool create -f p mirror "$DIR"/d{0,1} log "$DIR/l0"
run "$FOREBAY" volume create -V 64M p/v
run "$FOREBAY" volume create -V 256M p/large
random_file large 201326592
ended_itself=0
went_on=0
for round in $(seq "$ROUNDS"); do
    serve p
    rm -f "$DIR/told"
    python3 "$HERE/ledger.py" write "$SOCKET" p/v "$DIR/ledger" --seconds 600 --told "$DIR/told" \
        --expect-end --seed "$round" --connections 4 --depth 8 --flush-every 8 >"$DIR/writer.out" 2>&1 &
    writer=$!
    goes_on "$DIR/told" 300 "the writer"
    has=$(awk '/^VmData/ { print $2 }' "/proc/$SERVER/status")
    run prlimit --pid "$SERVER" --data=$(((has + round * 700) * 1024))
    # It wants memory for what is on its way.
    timeout 60 nbdcopy large "$(uri p/large)" >"$DIR/copy.out" 2>&1 &
    copy=$!
    wait $copy
    sleep 1
    if serving && lives "$SERVER"; then
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
