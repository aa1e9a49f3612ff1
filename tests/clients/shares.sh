#!/usr/bin/env bash
# Clients that take more than their share of memory and connections: replies that nobody takes, writes that
# never come whole, connections by the hundred. Another client's durable writes go on beside them, and the
# owner gets in. What the other client waits is measured, and shown.
. "$(dirname "$0")/lib.sh"
need python3 jq nbdkit nbdcopy
begin
# No write of the canary may take longer, whatever the others do. The idle figure is some milliseconds.
MAX_MS=5000
SECONDS_EACH=$(longer 4 15)
files 1G d0 d1
files 256M l0
run "$FOREBAY" pool create p mirror "$DIR"/d{0,1} log "$DIR/l0"
run "$FOREBAY" volume create -s -V 512M p/greedy
run "$FOREBAY" volume create -V 64M p/canary
serve p --listen tcp:127.0.0.1:0
TCP=$(sed -n 's/.*listening on tcp:\(127[0-9.:]*\).*/\1/p' "$SERVE_LOG")
[ -n "$TCP" ] || fail "no TCP listener: $(cat "$SERVE_LOG")"
nbdcopy --connections=1 -- [ nbdkit -U - random 64M ] "$(uri p/greedy)" 2>/dev/null

figures() { # WHERE
    timeout 400 python3 "$HERE/greedy.py" canary "$1" p/canary "$SECONDS_EACH" 2>"$DIR/.err" ||
        echo "{\"failed\": \"$(tail -n 1 "$DIR/.err")\"}"
}
IDLE=$(figures "$SOCKET")
say "alone: $IDLE"
# Another user of the machine, where root can become one.
OTHER=
[ "$(id -u)" = 0 ] && OTHER="--uid 65534"

# beside WHO KIND COUNT WHERE: the canary beside COUNT such clients.
beside() {
    # shellcheck disable=SC2086
    python3 "$HERE/greedy.py" "$2" "$4" p/greedy "$3" $1 >"$DIR/greedy.out" 2>&1 &
    local greedy=$! got who=${1:+another user}
    undo "kill -9 $greedy"
    await 30 "the greedy clients have begun: $DIR/greedy.out" grep -q ready "$DIR/greedy.out"
    # They take meanwhile what they can have.
    sleep 1
    got=$(figures "$SOCKET")
    kill -9 "$greedy"
    wait "$greedy" 2>/dev/null
    say "beside $3 times $2 of ${who:-the owner} ($(cat "$DIR/greedy.out")): $got," \
        "p99 $(jq -n "$got.p99_ms / $IDLE.p99_ms * 10 | round / 10") times the idle one"
    [ "$(jq -n "($got.max_ms // 1e9) < $MAX_MS")" = true ] ||
        fail "a write beside $3 times $2 of ${who:-the owner} took longer than $MAX_MS ms: $got"
    alive "beside $2"
}

beside "$OTHER" unread 24 "$TCP"
beside "$OTHER" reconnect 40 "$TCP"
beside "$OTHER" trickle 34 "$TCP"
beside "$OTHER" upload 34 "$TCP"
beside "" unread 24 "$TCP"
beside "" trickle 34 "$SOCKET"
if [ -n "$OTHER" ]; then
    # The canary connects when they are there.
    beside "$OTHER" idle 255 "$TCP"
    await 70 "the log names the user" grep -q 'user 65534: .* over its share' "$SERVE_LOG"
fi
stop_server
pass "no write waited for greedy clients"
