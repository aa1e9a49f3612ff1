#!/usr/bin/env bash
# Each allocation fails in turn: the n-th of a server, at its start and import, and under load, once or with
# all after it. It may end by that, in few words, or go on; what was answered as durable is there after each,
# and nothing hangs. The numbers are each small one, and then further and further apart.
. "$(dirname "$0")/lib.sh"
need cc nm python3
case $(uname -m) in x86_64 | aarch64) ;; *) skip "the shim does not know this processor" ;; esac
begin
ulimit -c 0
export RUST_BACKTRACE=0 FAILING_CONTROL=$RUN/control
# By this many percent the next number is larger, once they are not small any more.
STEP=$(longer 40 2)
SMALL=$(longer 6 200)
cc -O1 -shared -fPIC -o "$RUN/failing.so" "$HERE/failing.c" -ldl >"$DIR/cc.log" 2>&1 ||
    fail "the shim does not compile: $(cat "$DIR/cc.log")"
FAILING_SYMBOLS=
for symbol in mi_malloc_aligned mi_zalloc_aligned mi_realloc_aligned mi_free; do
    FAILING_SYMBOLS+="$(nm "$FOREBAY" 2>"$DIR/.out" | awk -v s=$symbol '$3 == s { print $1 }') "
done
[ "$(echo "$FAILING_SYMBOLS" | wc -w)" = 4 ] || skip "the binary does not name its allocator's functions (stripped?)"
export FAILING_SYMBOLS

# number N: as the 8 bytes of a control file, for printf.
number() {
    local hex at
    printf -v hex %016x "$1"
    for at in 14 12 10 8 6 4 2 0; do printf '%s' "\\x${hex:at:2}"; done
}
# arm N FOR_GOOD: the N-th allocation from now on. Written in place: a server may have it mapped.
# shellcheck disable=SC2059 # the format is all there is
arm() { printf "$(number "$1")$(number "$2")" | dd of="$FAILING_CONTROL" conv=notrunc status=none; }
counted() { od -An -td8 -j16 -N8 "$FAILING_CONTROL" | tr -d ' '; }
is_due() { [ "$(od -An -td8 -N8 "$FAILING_CONTROL" | tr -d ' ')" -gt 0 ]; }
head -c 24 /dev/zero >"$FAILING_CONTROL"

# attempt: a server that may end before it is ready; whether it is ready.
attempt() {
    SERVES=$((SERVES + 1))
    SERVE_LOG=$DIR/serve.$SERVES.log
    rm -f "$SOCKET"
    : >"$SERVE_LOG"
    LD_PRELOAD=$RUN/failing.so "$FOREBAY" serve p --listen "unix:$SOCKET" >"$SERVE_LOG" 2>&1 &
    SERVER=$!
    disown "$SERVER"
    for _ in $(seq 1 3000); do
        if ! lives "$SERVER"; then SERVER=; return 1; fi
        grep -q ' info: ready: ' "$SERVE_LOG" && return 0
        sleep 0.01
    done
    fail "$1: neither ready nor at its end within 30 s"
}
# in_few_words WHAT: how a server ended. The words of the standard library, or one line of our own.
in_few_words() {
    local said own
    said=$(grep -v -e ' info: listening on ' -e ' info: ready: ' -e '^note: run with `RUST_BACKTRACE' \
        -e '^skipping backtrace printing' "$SERVE_LOG")
    # Threads that fail at once write the parts of that sentence among each other's.
    own=$(sed -E 's/memory allocation of|bytes failed|\b[0-9]+\b//g' <<<"$said" | grep -v '^ *$')
    if ! grep -q -e 'memory allocation of' -e '^forebay: ' -e ' error: ' <<<"$said" ||
        [ "$(grep -c . <<<"$own")" -gt 1 ]; then
        fail "$1: it ended with other words: $said"
    fi
    rm -f "$SERVE_LOG"
}
check() { # WHAT
    serve p
    python3 "$HERE/ledger.py" check "$SOCKET" p/v "$DIR/ledger" >"$DIR/check.out" 2>&1 ||
        fail "$1: $(cat "$DIR/writer.out" "$DIR/check.out")"
    kill_server
}
ended_or_answers() { ! lives "$SERVER" || has_answers "$DIR/told" "$1"; }
next() { # N: the number after it
    local step=$(($1 * STEP / 100))
    echo $(($1 < SMALL || step == 0 ? $1 + 1 : $1 + step))
}
writer() {
    rm -f "$DIR/told"
    python3 "$HERE/ledger.py" write "$SOCKET" p/v "$DIR/ledger" --seconds 900 --told "$DIR/told" --expect-end \
        --seed "$1" --connections 2 --depth 8 --flush-every 8 --span $((4 << 20)) >"$DIR/writer.out" 2>&1 &
    WRITER=$!
    goes_on "$DIR/told" "$2" "the writer"
}

files 256M d0 d1
files 64M l0
run "$FOREBAY" pool create p mirror "$DIR"/d{0,1} log "$DIR/l0"
run "$FOREBAY" volume create -V 16M p/v
ended=0 went_on=0

# Starts after a kill under load: each is an import with a log to replay, of what the one before left.
serve p
writer 1 2000
kill_server
wait "$WRITER" || fail "the writer: $(cat "$DIR/writer.out")"
arm 0 0
attempt "a start in which nothing fails" || fail "it did not start: $(cat "$SERVE_LOG")"
most=$(counted)
kill_server
[ "$most" -gt 500 ] || fail "a start allocates $most times only: the shim is not where it should be"
n=1
while [ "$n" -le "$most" ]; do
    for for_good in 0 1; do
        arm "$n" $for_good
        if attempt "start, allocation $n"; then
            went_on=$((went_on + 1))
            kill_server
        else
            ended=$((ended + 1))
            in_few_words "start, allocation $n"
        fi
    done
    [ $((n % $(longer 3 10))) = 0 ] && { arm 0 0; check "starts up to allocation $n"; }
    n=$(next "$n")
    # A slow machine tries fewer.
    [ "$SECONDS" -lt "$(longer 60 900)" ] || break
done
arm 0 0
check "starts"
say "starts with $most allocations: $ended ended by one that failed, $went_on went on"

# Under load.
ended_later=0 rounds=0
n=1
while [ "$n" -le "$(longer 20000 200000)" ]; do
    arm 0 0
    attempt "load, allocation $n" || fail "it did not start: $(cat "$SERVE_LOG")"
    writer "$n" 50
    arm "$n" $((rounds % 2))
    # As long as the writer writes, allocations are made.
    for _ in $(seq 1 3000); do
        lives "$SERVER" && is_due || break
        sleep 0.02
    done
    lives "$SERVER" && is_due && fail "load, allocation $n: it has not come in a minute"
    # Once it has failed: at its end, now or with the next that fails, or still there for its clients.
    from=$(counted_in "$DIR/told")
    sleep 0.5
    await 120 "an end, or 50 more answers to the writer, after allocation $n failed" ended_or_answers $((from + 50))
    if lives "$SERVER"; then
        went_on=$((went_on + 1))
        kill_server
    else
        SERVER=
        ended_later=$((ended_later + 1))
        in_few_words "load, allocation $n"
    fi
    wait "$WRITER" || fail "load, allocation $n, the writer: $(cat "$DIR/writer.out")"
    check "load, allocation $n"
    rounds=$((rounds + 1))
    [ "$SECONDS" -lt "$(longer 100 1500)" ] || break
    n=$((n < $(longer 3 20) ? n + 1 : n + n * $(longer 150 25) / 100))
done
[ "$ended_later" -gt 0 ] || fail "nothing failed under load in $rounds rounds"
serve p
scrub_clean p
stop_server
pass "$((ended + ended_later)) servers ended by an allocation ($ended at their start), $went_on went on: $(tail -n 1 "$DIR/check.out")"
