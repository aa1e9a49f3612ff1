#!/usr/bin/env bash
# Commands beside each other on pools that no server has, and servers that start beside them: a pool
# is open once, with all its devices, and what was answered is there.
. "$(dirname "$0")/lib.sh"
need jq nbdkit flock
begin
LOOPS=3
EACH=$(longer 20 200)
STARTS=$(longer 4 30)

files 256M a0 a1 a2 b0 b1 b2
files 64M l0 l1 l2 l3
mkdir store
run "$FOREBAY" pool create a mirror "$DIR"/a{0,1}
run "$FOREBAY" pool create b raidz1 "$DIR"/b{0,1,2} log mirror "$DIR"/l{0,1}
run "$FOREBAY" pool create c objects "file://$DIR/store" log mirror "$DIR"/l{2,3}

# makes NUMBER: makes volumes one after the other. What is answered is noted, and so is a refusal.
makes() {
    local n volume
    for n in $(seq "$EACH"); do
        for volume in {a,b,c}/v$1-$n; do
            if "$FOREBAY" volume create -s -V 1M $volume 2>"$DIR/refused.$1"; then
                echo $volume >>"$DIR/made.$1"
            else
                cat "$DIR/refused.$1" >>"$DIR/refusals"
            fi
        done
    done
}
# changes: exchanges a side of a mirror and one of a log, over and over, until the loops have ended.
changes() {
    local from=a0 to=a2 was
    while [ ! -e "$DIR/made.all" ]; do
        "$FOREBAY" pool detach b "$DIR/l1"
        "$FOREBAY" pool attach -f b "$DIR/l0" "$DIR/l1"
        "$FOREBAY" pool replace -f a "$DIR/$from" "$DIR/$to" || continue
        "$FOREBAY" pool resilver -w a
        was=$from from=$to to=$was
    done >"$DIR/changes" 2>&1
}
# together: what all loops have made is there and nothing else, and nothing was left out.
together() {
    cat "$DIR"/made.* | sort >"$DIR/made"
    run "$FOREBAY" volume list -H -o name
    sort "$DIR/.out" | diff "$DIR/made" - >"$DIR/diff" || fail "made, and listed: $(head "$DIR/diff")"
    "$FOREBAY" pool list --json | jq -e '[.pools[].health] == ["ONLINE", "ONLINE", "ONLINE"]' >/dev/null ||
        fail "the pools: $("$FOREBAY" pool status; sort "$DIR/refusals" | uniq -c | sort -rn | head)"
    ! grep -v 'in use by' "$DIR/refusals" || fail "refused for another reason than that others have the pool"
}

: >refusals
loops=()
for i in $(seq $LOOPS); do
    makes "$i" &
    loops+=($!)
done
changes &
wait "${loops[@]}"
: >made.all
wait
run "$FOREBAY" pool resilver -w a
together
say "$(wc -l <made) volumes made, $(wc -l <refusals) commands refused"

# looks: loops of a command that only looks, until the files are gone.
looks() {
    for i in $(seq $LOOPS); do
        : >"go.$i"
        while [ -e "go.$i" ]; do "$FOREBAY" volume list >/dev/null 2>&1; done &
    done
}

late=0
for n in $(seq "$STARTS"); do
    looks
    sleep 0.2
    SERVES=$((SERVES + 1))
    SERVE_LOG=$DIR/serve.$SERVES.log
    "$FOREBAY" serve --listen "unix:$SOCKET" >"$SERVE_LOG" 2>&1 &
    SERVER=$!
    await 120 "a server that starts beside commands" grep -q 'ready: ' "$SERVE_LOG"
    # Commands may have had a pool for all of the ten seconds that a server waits.
    grep -q 'serving a (.*), b (.*), c (' "$SERVE_LOG" || late=$((late + 1))
    rm -f go.*
    for pool in a b c; do
        await 60 "a server that has pool $pool" grep -qE "serving .*\b$pool \(|pool '$pool' can be opened now" "$SERVE_LOG"
    done
    stop_server
done
together

for n in $(seq "$STARTS"); do
    looks
    await 60 "an export beside commands" "$FOREBAY" pool export b
    rm -f go.*
    wait
    run "$FOREBAY" pool list -H -o name
    [ "$(tr '\n' ' ' <"$DIR/.out")" = "a c " ] || fail "export $n, and known are: $(cat "$DIR/.out")"
    # Exported: without -f.
    run "$FOREBAY" pool import -d "$DIR" b
done
together

# A server that takes long to open a pool, because a device of it is slow, and long to close it.
files 256M e0
nbdkit -U "$RUN/slow" -P "$RUN/slow.pid" --filter=delay memory 64M delay-read=100ms
undo 'kill $(cat "$RUN/slow.pid")'
await 10 "a slow device" test -e "$RUN/slow.pid"
run "$FOREBAY" pool create e "$DIR/e0" log "nbd+unix:///?socket=$RUN/slow"
SERVES=$((SERVES + 1))
SERVE_LOG=$DIR/serve.$SERVES.log
"$FOREBAY" serve --listen "unix:$SOCKET" e >"$SERVE_LOG" 2>&1 &
SERVER=$!
held() { ! flock -n "$DIR/e0" true; }
await 60 "a server that has the devices" held
run "$FOREBAY" volume create -s -V 1M e/while-it-starts
kill -INT "$SERVER"
run "$FOREBAY" volume create -s -V 1M e/while-it-ends
ended "$SERVER" "the server"
SERVER=
run "$FOREBAY" volume list -H -o name e
[ "$(tr '\n' ' ' <"$DIR/.out")" = "e/while-it-ends e/while-it-starts " ] || fail "made: $(cat "$DIR/.out")"
pass "$LOOPS loops of commands, and $STARTS starts ($late with a pool that came late) and exports beside them"
