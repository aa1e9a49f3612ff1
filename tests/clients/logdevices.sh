#!/usr/bin/env bash
# Log devices come, go and fail under load, and no acknowledged write is lost. The failing one is
# real: a file behind nbdkit's error filter, seen through nbdfuse.
. "$(dirname "$0")/lib.sh"
need python3 jq
begin
files 256M d0 d1 d2
files 64M l0 l1 l2
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2}
run "$FOREBAY" volume create -V 128M p/v
round=0
load() {
    round=$((round + 1))
    rm -f "$DIR/told"
    python3 "$HERE/ledger.py" write "$SOCKET" p/v "$DIR/ledger" --seconds 600 --seed $round \
        --expect-end --told "$DIR/told" >"$DIR/writer.out" 2>&1 &
    WRITER=$!
    more
}
more() { goes_on "$DIR/told" 500 "the writer"; }
loaded() {
    more
    kill -TERM "$WRITER"
    wait "$WRITER" || fail "$1: writes suffered: $(cat "$DIR/writer.out")"
    run python3 "$HERE/ledger.py" check "$SOCKET" p/v "$DIR/ledger"
}
# cut WHAT: kill -9 in the middle of the load, and everything answered must be there.
cut() {
    more
    alive
    kill_server
    wait "$WRITER" || fail "$1: the writer: $(cat "$DIR/writer.out")"
    serve p
    run python3 "$HERE/ledger.py" check "$SOCKET" p/v "$DIR/ledger"
}
logs() { "$FOREBAY" pool status p | sed -n '/^[[:space:]]*logs/,$p'; }
serve p
say "add, attach, detach, remove under load"
load
run "$FOREBAY" pool add p log "$DIR/l0"
more
run "$FOREBAY" pool attach p "$DIR/l0" "$DIR/l1"
more
run "$FOREBAY" pool detach p "$DIR/l0"
more
run "$FOREBAY" pool remove p "$DIR/l1"
loaded "changes of the log"
logs | grep -q "/l[01] " && fail "removed, and still listed: $(logs)"
say "kill -9 after each change"
load
run "$FOREBAY" pool add -f p log mirror "$DIR/l0" "$DIR/l1"
cut "after add"
load
run "$FOREBAY" pool detach p "$DIR/l0"
cut "after detach"
load
run "$FOREBAY" pool attach -f p "$DIR/l1" "$DIR/l2"
cut "after attach"
load
run "$FOREBAY" pool add -f p log "$DIR/l0"
cut "after a second log"
load
run "$FOREBAY" pool remove p "$DIR/l0"
cut "after remove"

if command -v nbdkit >/dev/null && command -v nbdfuse >/dev/null && [ -e /dev/fuse ]; then
    say "a side of the log fails under load, then the only one"
    mkdir "$RUN/bad"
    nbdkit -f -U "$RUN/k" --filter=error memory 64M error-pwrite=EIO error-pwrite-rate=100% \
        error-file="$RUN/fail" >"$DIR/nbdkit.log" 2>&1 &
    KIT=$!
    disown $KIT
    undo "kill -9 $KIT"
    await 10 "nbdkit listens" test -S "$RUN/k"
    nbdfuse "$RUN/bad/" "nbd+unix:///?socket=$RUN/k" >"$DIR/badfuse.log" 2>&1 &
    disown $!
    undo "fusermount3 -uz '$RUN/bad'; kill -9 $!"
    await 10 "nbdfuse shows the device" test -e "$RUN/bad/nbd"
    run "$FOREBAY" pool attach -f p "$DIR/l1" "$RUN/bad/nbd"
    load
    touch "$RUN/fail"
    loaded "a failed side"
    "$FOREBAY" pool status p | grep "$RUN/bad/nbd" | grep -qv ONLINE ||
        fail "the failed side counts as well: $("$FOREBAY" pool status p)"
    load
    cut "with a failed side"
    rm -f "$RUN/fail"
    run "$FOREBAY" pool detach p "$RUN/bad/nbd"
    say "the only log device fails under load"
    run "$FOREBAY" pool add -f p log "$RUN/bad/nbd"
    for dev in "$(logs | awk '$1 ~ /^mirror-/ { print $1; exit }')"; do
        run "$FOREBAY" pool remove p "${dev:-$DIR/l1}"
    done
    load
    touch "$RUN/fail"
    loaded "the only log device failed"
    "$FOREBAY" pool status p | grep "$RUN/bad/nbd" | grep -qv ONLINE ||
        fail "the failed log counts as well: $("$FOREBAY" pool status p)"
    load
    cut "without any log device"
    rm -f "$RUN/fail"
    run "$FOREBAY" pool remove p "$RUN/bad/nbd"
else
    say "skip failing devices: nbdkit or nbdfuse is not here"
fi
say "the files of the log device and of a member are deleted under load"
run "$FOREBAY" pool add -f p log "$DIR/l0"
load
rm "$DIR/l0" "$DIR/d2"
faulted() { "$FOREBAY" pool status p | grep "$1" | grep -q FAULTED; }
await 30 "the deleted log device is FAULTED" faulted "$DIR/l0"
await 30 "the deleted member is FAULTED" faulted "$DIR/d2"
loaded "deleted files"
load
cut "with deleted files"
files 256M d3
run "$FOREBAY" pool replace p "$DIR/d2" "$DIR/d3"
run "$FOREBAY" pool resilver -w p
run "$FOREBAY" pool remove p "$DIR/l0"
alive
scrub_clean p
stop_server
pass "adds, removals, attaches, kills, failures and deleted files"
