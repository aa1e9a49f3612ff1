#!/usr/bin/env bash
# A pool in an object store is taken over by the host that has the log's other side: the first host is killed,
# stands still, or is cut off from the other host, from the store, or from both. Nothing that was answered is
# lost, and what the first host does later counts nowhere.
. "$(dirname "$0")/lib.sh"
need_root "network namespaces"
need python3 jq ip nsenter unshare versitygw mount
begin
unshare -n -m true 2>/dev/null || skip "no namespaces here"
[ -e /etc/machine-id ] || skip "no /etc/machine-id"
# The first host: a network, an identity and a log device of its own.
mkdir -p "$DIR/gw/pools" "$DIR/meta" "$DIR/private" "$DIR/local"
tr -dc 0-9a-f </dev/urandom | head -c 32 >"$DIR/id"
unshare -n -m sh -c "mount --bind '$DIR/id' /etc/machine-id && mount --bind '$DIR/private' '$DIR/local' && exec sleep 30000" &
FAR=$!
disown $FAR
undo "kill $FAR"
there() { nsenter -t $FAR -n -m "$@"; }
is_there() { there cmp -s /etc/machine-id "$DIR/id"; }
await 10 "the other host" is_there
NET=10.$((100 + $$ % 100)).$(($$ / 100 % 250))
wire() { # NAME NUMBER: a network of its own for what the first host needs
    local name=fb$1$(($$ % 10000))
    ip link add "${name}a" type veth peer name "${name}b" netns $FAR 2>"$DIR/.out" || skip "$(cat "$DIR/.out")"
    undo "ip link del ${name}a"
    run ip addr add "$NET.$2/30" dev "${name}a"
    run ip link set "${name}a" up
    run there ip addr add "$NET.$(($2 + 1))/30" dev "${name}b"
    run there ip link set "${name}b" up
}
wire s 1
wire l 5
run there ip link set lo up
link() { run there ip link set "fb$1$(($$ % 10000))b" "$2"; }
export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=testsecret AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://$NET.1:7070
versitygw --access test --secret testsecret --port "$NET.1:7070" --quiet posix --sidecar "$DIR/meta" "$DIR/gw" \
    >>"$DIR/gateway.log" 2>&1 &
disown $!
undo "kill -9 $!"
await 20 "the gateway answers" bash -c "</dev/tcp/$NET.1/7070"
truncate -s 256M "$DIR/private/a0" "$DIR/b0"
serve_side() {
    rm -f "$DIR/target.log"
    "$FOREBAY" log-target --plaintext --listen "tcp:$NET.5:10809" side="$DIR/b0" >>"$DIR/target.log" 2>&1 &
    SIDE_SERVER=$!
    disown $SIDE_SERVER
    undo "kill -9 $SIDE_SERVER"
    await 20 "the side is served" grep -q 'ready: ' "$DIR/target.log"
}
restart_side() {
    kill -9 $SIDE_SERVER
    ended $SIDE_SERVER "the side"
    serve_side
}
serve_side
STORE="s3://pools/tank?size=8G"
SIDE="nbd://$NET.5/side"
first() { FOREBAY_STATE_DIR=$DIR/state.a there "$FOREBAY" "$@"; }
mkdir "$DIR/state.a"

# serve_first: the first host serves the pool on a socket of its own.
serve_first() {
    rm -f "$DIR/a.sock" "$DIR/first.log"
    nsenter -t $FAR -n -m env "FOREBAY_STATE_DIR=$DIR/state.a" "$FOREBAY" serve p -d "$STORE" -d "$SIDE" -d "$DIR/local/a0" \
        --listen "unix:$DIR/a.sock" >"$DIR/first.log" 2>&1 &
    FIRST=$!
    disown $FIRST
    undo "kill -9 $FIRST"
    await 60 "the first host serves" grep -q 'ready: ' "$DIR/first.log"
}
# A host that was replaced and goes on may refuse what it still has, before the writer's connection ends.
write_there() {
    rm -f "$DIR/told"
    python3 "$HERE/ledger.py" write "$DIR/a.sock" p/busy "$DIR/ledger" --seconds 600 --seed "$1" \
        --expect-end --expect-error --told "$DIR/told" >"$DIR/writer.out" 2>&1 &
    WRITER=$!
    goes_on "$DIR/told" 1000 "the writer"
}
# take_over: waits for the standby of the second host, which is told to take what is silent, to serve.
stand_by() {
    SERVES=$((SERVES + 1))
    SERVE_LOG=$DIR/serve.$SERVES.log
    rm -f "$SOCKET"
    "$FOREBAY" standby --take-over p -d "$STORE" -d "$SIDE" --listen "unix:$SOCKET" >"$SERVE_LOG" 2>&1 &
    SERVER=$!
    disown $SERVER
    await 20 "the second host stands by" grep -q "standing by" "$SERVE_LOG"
}
take_over() {
    local begun
    begun=$(date +%s%N)
    await 60 "the second host serves" grep -q 'ready: ' "$SERVE_LOG"
    TOOK=$((($(date +%s%N) - begun) / 1000000))
}
check() { run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"; }

say "a pool of the first host"
run first pool create -o txg_timeout=1 -o log_timeout=2 p objects "$STORE" log mirror "$DIR/local/a0" "$SIDE"
run first volume create -V 64M p/busy
serve_first
say "the second host does not take what is in use"
write_there 1
refuse timeout 60 "$FOREBAY" serve p -d "$STORE" -d "$SIDE" --listen "unix:$SOCKET"
refuse timeout 60 "$FOREBAY" pool import -f -d "$STORE" -d "$SIDE" p
goes_on "$DIR/told" 500 "the writer of the first host"

times=()
round() { # EVENT
    stand_by
    goes_on "$DIR/told" 500 "the writer of the first host, beside the standby"
    ! grep -q 'ready: ' "$SERVE_LOG" || fail "the standby took what is in use"
    case $1 in
    killed) kill -9 $FIRST ;;
    still) kill -STOP $FIRST ;;
    cut) link s down; link l down ;;
    # It still reaches the other host, whose operator ends its connection to the side.
    unstored) link s down; restart_side ;;
    esac
    take_over
    times+=("$1 $TOOK ms")
    [ -z "${FOREBAY_FIGURES:-}" ] || echo "$1 $TOOK" >>"$FOREBAY_FIGURES"
    link s up
    link l up
    kill -CONT $FIRST 2>/dev/null
    kill -TERM $WRITER 2>/dev/null
    wait $WRITER || fail "the writer: $(cat "$DIR/writer.out")"
    check
    # The first host may be alive: it stops by itself, and what it writes is refused.
    if [ "$1" != killed ]; then
        await 60 "the first host knows" suspended
        check
        kill -9 $FIRST 2>/dev/null
    fi
    ended $FIRST "the first host's server"
    scrub_clean p
    stop_server
}
suspended() { first pool status p 2>/dev/null | grep -q SUSPENDED; }
again() { # SEED: the first host has the pool again, with both sides
    serve_first
    first pool online p "$DIR/local/a0" >/dev/null 2>&1
    await 30 "both sides are in use" whole
    write_there "$1"
}
whole() { [ "$(first pool list -H -o health p)" = ONLINE ]; }
# FOREBAY_TAKEOVERS: how many; FOREBAY_FIGURES: a file that gets a line for each, event and milliseconds.
all=(killed still cut unstored)
number=1
while [ $number -le "${FOREBAY_TAKEOVERS:-$(longer 4 24)}" ]; do
    event=${all[(number - 1) % 4]}
    say "the first host is $event"
    [ $number = 1 ] || again $number
    number=$((number + 1))
    round "$event"
done

say "what only the first host has is not given up: the other side fell behind before"
again $number
link l down
alone() { [ "$(first pool list -H -o health p)" = DEGRADED ]; }
await 20 "the side is given up" alone
goes_on "$DIR/told" 500 "the writer, with one side"
kill -9 $FIRST
kill -TERM $WRITER 2>/dev/null
wait $WRITER || fail "the writer: $(cat "$DIR/writer.out")"
ended $FIRST "the first host's server"
link l up
refuse "$FOREBAY" pool import -f -d "$STORE" -d "$SIDE" p
serve_first
run python3 "$HERE/ledger.py" check "$DIR/a.sock" p/busy "$DIR/ledger"
kill -INT $FIRST
ended $FIRST "the first host's server"

say "of two standbys one has it"
serve_first
write_there 99
stand_by
ONE=$SERVER ONE_LOG=$SERVE_LOG SOCKET_ONE=$SOCKET
mkdir -p "$DIR/state.c"
nsenter -t $FAR -n -m env "FOREBAY_STATE_DIR=$DIR/state.c" "$FOREBAY" standby --take-over p -d "$STORE" -d "$SIDE" \
    --listen "unix:$DIR/c.sock" >"$DIR/c.log" 2>&1 &
OTHER=$!
disown $OTHER
undo "kill -9 $OTHER"
await 20 "another host stands by" grep -q "standing by" "$DIR/c.log"
kill -9 $FIRST
wait $WRITER || fail "the writer: $(cat "$DIR/writer.out")"
one_serves() { grep -q 'ready: ' "$ONE_LOG" || grep -q 'ready: ' "$DIR/c.log"; }
await 60 "one of them serves" one_serves
sleep 6
[ "$(cat "$ONE_LOG" "$DIR/c.log" | grep -c 'ready: ')" = 1 ] || fail "both serve: $(cat "$ONE_LOG" "$DIR/c.log")"
grep -q 'ready: ' "$ONE_LOG" || SOCKET=$DIR/c.sock
check
kill -INT $ONE $OTHER
ended $ONE "a standby"
ended $OTHER "a standby"
SERVER=
pass "$(IFS=,; echo "${times[*]}")"
