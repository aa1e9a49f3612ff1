#!/usr/bin/env bash
# Single blocks scattered over a volume of a PiB: the map stays small, an import needs little memory, and
# one that has too little refuses and says how much it would take, instead of ending in the middle.
. "$(dirname "$0")/lib.sh"
need python3 prlimit
begin
BLOCKS=$(longer 300000 1000000)
files 8G d0
run "$FOREBAY" pool create -f p "$DIR/d0"
run "$FOREBAY" volume create -s -V 1P p/wide
run "$FOREBAY" volume create -V 64M p/small
serve p
run python3 "$HERE/scatter.py" write "$SOCKET" p/wide "$BLOCKS"
run "$FOREBAY" pool sync p
map_bytes() { pool_json stats p | python3 -c 'import json, sys; print(json.load(sys.stdin)["pools"][0]["map_memory_bytes"])'; }
took=$(map_bytes)
[ "$took" -le $((40 * BLOCKS + 65536)) ] || fail "$BLOCKS blocks took $took bytes of map"
kill_server

# Much less than the 2 KiB a block that such a map has taken.
ROOM=$((took + (220 << 20)))
with_limit() { printf '#!/bin/sh\nexec prlimit --data=%d "%s" "$@"\n' "$1" "$FOREBAY" >"$RUN/limited"; chmod +x "$RUN/limited"; }
WHOLE=$FOREBAY
with_limit $ROOM
FOREBAY=$RUN/limited
serve p
run python3 "$HERE/scatter.py" check "$SOCKET" p/wide "$BLOCKS" 7
peak=$(awk '/^VmHWM/ { print $2 }' "/proc/$SERVER/status")
alive
stop_server

# Room for the program and not for the map.
FOREBAY=$WHOLE
with_limit $((took + (66 << 20)))
"$RUN/limited" serve p --listen "unix:$SOCKET" >"$DIR/refused" 2>&1
code=$?
[ $code = 1 ] || fail "with too little memory the exit code was $code: $(cat "$DIR/refused")"
grep -q "of memory" "$DIR/refused" || fail "the refusal does not speak of memory: $(cat "$DIR/refused")"
grep -q "'wide'" "$DIR/refused" || fail "the refusal does not name the volume: $(cat "$DIR/refused")"
grep -q "more memory" "$DIR/refused" || fail "the refusal does not say what helps: $(cat "$DIR/refused")"

# A refusal has changed nothing.
serve p
run python3 "$HERE/scatter.py" check "$SOCKET" p/wide "$BLOCKS" 7
scrub_clean p
stop_server
pass "$BLOCKS blocks: $took bytes of map, $peak KiB at most in an import; refused: $(grep -o 'its map.*' "$DIR/refused" | head -1)"
