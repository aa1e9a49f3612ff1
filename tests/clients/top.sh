#!/usr/bin/env bash
# 'forebay top' and 'forebay up --view' on a terminal: what they show of a pool under load, and that q, Ctrl-C and a
# signal leave the terminal as it was. Without a terminal, lines come out.
. "$(dirname "$0")/lib.sh"
need_terminal
begin
files 128M d0 d1
files 64M l0
run "$FOREBAY" pool create -f p mirror "$DIR"/d{0,1} log "$DIR/l0"
run "$FOREBAY" volume create -V 32M p/busy
refuse "$FOREBAY" top p
serve p
load 1
on_terminal() { on_screen "$@" >"$DIR/screen" 2>&1 || fail "$*: $(cat -v "$DIR/screen")"; }
# The second screen has rates.
on_terminal 'ONLINE' '' '[µm]s' q -- "$FOREBAY" top p
for word in 'latency' 'durable' 'memory' 'l0' 'longest' 'cleaning' 'q: leave'; do
    grep -q "$word" "$DIR/screen" || fail "the screen lacks '$word': $(cat -v "$DIR/screen")"
done
on_terminal 'latency' C-c -- "$FOREBAY" top
on_terminal 'latency' TERM -- "$FOREBAY" top
run timeout 60 "$FOREBAY" pool offline p "$DIR/d1"
on_terminal 'OFFLINE' q -- "$FOREBAY" top p
lines() { timeout 5 "$FOREBAY" top p; }
lines >"$DIR/lines" 2>&1
grep -q 'bandwidth' "$DIR/lines" && grep -q '^p  ' "$DIR/lines" || fail "no lines: $(cat "$DIR/lines")"
loaded "forebay top"
alive
stop_server

say "forebay up --view"
on_terminal 'latency' q 'ONLINE .*write' C-c -- "$FOREBAY" up --dir "$DIR/up" --size 64M --listen "unix:$RUN/up" --view
grep -q 'stopped: the pools are closed' "$DIR/screen" || fail "no clean end: $(cat -v "$DIR/screen")"
on_terminal 'latency' C-c -- "$FOREBAY" up --dir "$DIR/up" --listen "unix:$RUN/up" --view
grep -q 'stopped: the pools are closed' "$DIR/screen" || fail "no clean end: $(cat -v "$DIR/screen")"
on_terminal "'forebay top' in another terminal" C-c -- "$FOREBAY" up --dir "$DIR/up" --listen "unix:$RUN/up"
pass "screens of pools, and terminals as they were before"
