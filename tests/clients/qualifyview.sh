#!/usr/bin/env bash
# The screen of 'forebay qualify' on a terminal: rate, percentiles, the window of the steady state and the time that
# is left, through a whole run; Ctrl-C leaves the terminal as it was, and the run can be taken up again.
. "$(dirname "$0")/lib.sh"
need_terminal
begin
on_terminal() { on_screen "$@" >"$DIR/screen" 2>&1 || fail "$*: $(tail -c 400 "$DIR/screen" | cat -v)"; }
QUALIFY=("$FOREBAY" qualify disk.img --size 64M)
on_terminal 'no round yet' '' -- "${QUALIFY[@]}" --shrink 10 --out whole.fbq
for word in 'no round yet' 'five rounds are needed' 'p99\.999' 'longest' 'range' 'slope' 'left' 'verdict'; do
    grep -q "$word" "$DIR/screen" || fail "the screen lacks '$word': $(tail -c 400 "$DIR/screen" | cat -v)"
done
[ ! -e disk.img ] || fail "the file of a complete run is still there"
# An interrupted run ends with 1, and so does the helper; what it says of the terminal would come first.
on_screen 'no round yet' C-c -- "${QUALIFY[@]}" --out part.fbq >"$DIR/screen" 2>&1
grep -q 'with --resume goes on' "$DIR/screen" || fail "Ctrl-C does not say how to go on: $(tail -c 400 "$DIR/screen" | cat -v)"
[ -e disk.img ] || fail "an interrupted run has lost its file"
steps() { grep -c '"step"' "$1"; }
done_before=$(steps part.fbq)
refuse "$FOREBAY" qualify disk.img --size 64M --shrink 10 --plain --out part.fbq --resume
"${QUALIFY[@]}" --plain --out part.fbq --resume >"$DIR/resumed" 2>&1 &
RUN_PID=$!
undo "kill -9 $RUN_PID"
more() { [ "$(steps part.fbq)" -gt "$done_before" ]; }
await 120 "the run goes on with the next step" more
kill -9 $RUN_PID
wait $RUN_PID 2>/dev/null
run "$FOREBAY" report part.fbq -o part.html
# A device that does not answer: a second Ctrl-C ends the command at once, and gives the terminal back.
if command -v nbdkit >/dev/null; then
    nbdkit -f -P "$DIR/nbdkit.pid" -U "$DIR/nbdkit.sock" --filter=delay memory 64M wdelay=3600 &
    undo "kill -9 $!"
    await 10 "nbdkit serves" test -e "$DIR/nbdkit.pid"
    SLOW="nbd+unix:///?socket=$DIR/nbdkit.sock"
    # One that comes within half a second of the first does not count: it is hit until the command has ended.
    AGAIN=()
    for _ in $(seq 20); do AGAIN+=('[0-9]' C-c); done
    on_screen 'no round yet' C-c "${AGAIN[@]}" -- "$FOREBAY" qualify "$SLOW" --destroy "$SLOW" --out slow.fbq >"$DIR/screen" 2>&1
    grep -q $'\x1b\\[?1049l' "$DIR/screen" || fail "a second Ctrl-C leaves the other page: $(tail -c 400 "$DIR/screen" | cat -v)"
fi
# Ctrl-C ends the run of a model at once: its progress is a line, and the terminal stays as it was.
on_screen 'step 1 of' C-c -- "$FOREBAY" qualify sim:intel-320-300gb --profile standard >"$DIR/screen" 2>&1
if grep -q $'\x1b\\[?1049h' "$DIR/screen"; then fail "a model has a full screen: $(tail -c 400 "$DIR/screen" | cat -v)"; fi
pass "the screen has what it should, and an interrupted and a killed run go on"
