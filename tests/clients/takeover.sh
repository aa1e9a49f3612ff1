#!/usr/bin/env bash
# A pool is never used twice. On one machine the locks refuse; where locks do not reach (another machine
# on the same disks: here loop devices on the same files, and another machine id) the heartbeat refuses
# while it moves. When the owner stands still (SIGSTOP) and is replaced with -f, it must stop as soon as
# it goes on, and neither side loses what it acknowledged.
. "$(dirname "$0")/lib.sh"
need_root "loop devices and another machine id"
need python3 jq losetup unshare
[ -e /dev/loop-control ] || skip "there are no loop devices here"
[ -s /etc/machine-id ] || skip "this machine has no id"
begin
unshare -m true 2>/dev/null || skip "no mount namespaces here"
ROUNDS=$(longer 1 12)
head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$RUN/other-id"

# A program that runs a command as on another machine, under the process id that it was given.
cat >"$RUN/there" <<END
#!/bin/sh
FOREBAY_STATE_DIR=$RUN/second exec unshare -m --propagation private sh -c \
    'mount --bind "\$0" /etc/machine-id && exec "\$@"' "$RUN/other-id" "\$@"
END
chmod +x "$RUN/there"
there() { "$RUN/there" "$@"; }
write() { # VOLUME SECONDS OPTION...: a load on the first machine
    python3 "$HERE/ledger.py" write "$SOCKET" "p/$1" "$DIR/$1.ledger" --seconds "$2" --depth 4 \
        --seed "$round" --told "$DIR/$1.told" "${@:3}" >"$DIR/$1.out" 2>&1 &
}
check() { # VOLUME SOCKET
    python3 "$HERE/ledger.py" check "$2" "p/$1" "$DIR/$1.ledger" >"$DIR/check.out" 2>&1 ||
        fail "round $round: $1 after $3: $(cat "$DIR/$1.out" "$DIR/check.out")"
}
second_status() { FOREBAY_STATE_DIR=$RUN/second "$FOREBAY" pool status p; }

for round in $(seq "$ROUNDS"); do
    files 256M d0 d1 d2
    files 64M l0 l1
    rm -f "$DIR"/*.ledger "$DIR"/*.told
    rm -rf "$RUN/second" "$RUN/state"
    run "$FOREBAY" pool create -f -o txg_timeout=1 p raidz1 "$DIR"/d{0,1,2} log mirror "$DIR"/l{0,1}
    for volume in early late other; do run "$FOREBAY" volume create -V 32M "p/$volume"; done
    serve p
    LOOPS=()
    for file in d0 d1 d2 l0 l1; do
        loop=$(losetup -f --show --direct-io=on "$DIR/$file" 2>"$DIR/.out") || skip "$(cat "$DIR/.out")"
        LOOPS+=("$loop")
        undo "free_loop $loop '$DIR/$file'"
    done
    seen=()
    for loop in "${LOOPS[@]}"; do seen+=(-d "$loop"); done

    write early 600 --expect-end
    early=$!
    write late 600 --expect-error
    late=$!
    goes_on "$DIR/early.told" 1 "the first writer"
    goes_on "$DIR/late.told" 1 "the writer that stays"
    if [ "$round" = 1 ]; then
        say "in use: refused by the locks, and without them by the heartbeat"
        refuse env FOREBAY_STATE_DIR="$RUN/mine" "$FOREBAY" pool import -f -d "$DIR" p
        refuse there "$FOREBAY" pool import -f -d "$DIR" p
        refuse there "$FOREBAY" pool import "${seen[@]}" p
        grep -q 'in use there' "$DIR/.out" || fail "refused for another reason: $(cat "$DIR/.out")"
        refuse there "$FOREBAY" pool import -f "${seen[@]}" p
        alive
    fi
    # Some moment, of its first heartbeats in some rounds and between them in others.
    sleep "$((RANDOM % 3)).$((RANDOM % 900 + 100))"
    kill -STOP "$SERVER"
    stopped=$SECONDS
    kill -TERM $early
    wait $early || fail "the first writer: $(cat "$DIR/early.out")"
    if [ "$round" = 1 ]; then
        say "standing still: asks for -f"
        refuse there "$FOREBAY" pool import "${seen[@]}" p
        grep -q -- '-f' "$DIR/.out" || fail "refused for another reason: $(cat "$DIR/.out")"
    fi
    run there "$FOREBAY" pool import -f "${seen[@]}" p
    : >"$DIR/serve.there.log"
    "$RUN/there" "$FOREBAY" serve p --listen "unix:$RUN/t" >"$DIR/serve.there.log" 2>&1 &
    second=$!
    disown $second
    undo "kill -9 $second"
    await 30 "the second machine serves" grep -q 'ready: ' "$DIR/serve.there.log"
    check early "$RUN/t" "the takeover"
    python3 "$HERE/ledger.py" write "$RUN/t" p/other "$DIR/other.ledger" --seconds 600 --depth 4 \
        --seed "$round" --told "$DIR/other.told" --expect-end >"$DIR/other.out" 2>&1 &
    other=$!
    goes_on "$DIR/other.told" 500 "the writer at the second owner"
    kill -CONT "$SERVER"
    resumed=$SECONDS
    stops() { "$FOREBAY" pool status p | grep -q 'another process has imported'; }
    for _ in $(seq 300); do stops && break; sleep 0.2; done
    stops || fail "round $round: the first owner does not notice in a minute: $("$FOREBAY" pool status p; second_status)"
    "$FOREBAY" pool status p | grep -q SUSPENDED || fail "not suspended: $("$FOREBAY" pool status p)"
    wait $late ||
        fail "round $round, the writer at the first owner (stopped for $((resumed - stopped)) s, resumed $((SECONDS - resumed)) s ago): $(cat "$DIR/late.out")"
    # The second owner is not disturbed by what the first one had still on its way.
    goes_on "$DIR/other.told" 500 "the writer at the second owner"
    kill -TERM $other
    wait $other || fail "the writer at the second owner: $(cat "$DIR/other.out")"
    second_status >"$DIR/.status" || fail "the second owner: $(cat "$DIR/.status")"
    grep -q 'errors: No known data errors' "$DIR/.status" || fail "$(cat "$DIR/.status")"
    grep -q SUSPENDED "$DIR/.status" && fail "round $round: the second owner stopped: $(cat "$DIR/.status")"
    for volume in early late other; do check $volume "$RUN/t" "the first owner woke"; done
    # Nothing of the first owner may lie where the second looks after a crash.
    kill -9 $second
    ended $second "the second owner, killed,"
    kill_server
    : >"$DIR/serve.there.log"
    "$RUN/there" "$FOREBAY" serve p --listen "unix:$RUN/t" >"$DIR/serve.there.log" 2>&1 &
    second=$!
    disown $second
    undo "kill -9 $second"
    await 30 "the second machine serves again: $DIR/serve.there.log" grep -q 'ready: ' "$DIR/serve.there.log"
    for volume in early late other; do check $volume "$RUN/t" "a crash of the second owner"; done
    FOREBAY_STATE_DIR=$RUN/second scrub_clean p
    FOREBAY_STATE_DIR=$RUN/second "$FOREBAY" pool status p | grep -q 'repaired 0B in' ||
        fail "there was something to repair: $(second_status)"
    kill -9 $second
    ended $second "the second owner, killed,"
    for loop in "${LOOPS[@]}"; do
        file=$(cat "/sys/block/${loop##*/}/loop/backing_file")
        free_loop "$loop" "$file"
        await 10 "$loop is free" is_free "$loop" "$file"
    done
    rm -f "$DIR"/d? "$DIR"/l?
done
pass "$ROUNDS takeovers"
