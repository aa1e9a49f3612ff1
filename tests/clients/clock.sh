#!/usr/bin/env bash
# The clock of day jumps by years, forth and back, in the server and in commands, under load: nothing stops,
# nothing is lost, and nobody takes the pool for one that is not in use. Then it is exported, killed and
# imported with clocks that are behind. (The clock of these processes only: a preloaded shim.)
. "$(dirname "$0")/lib.sh"
need cc python3 jq
begin
ROUNDS=$(longer 1 10)
cc -O1 -shared -fPIC -o "$RUN/clock.so" "$HERE/clock.c" >"$DIR/cc.log" 2>&1 ||
    fail "the shim does not compile: $(cat "$DIR/cc.log")"
export CLOCK_CONTROL=$RUN/ahead
YEAR=31557600
jump() { # YEARS: from here on the clock is so many ahead; written in place, a server has it mapped
    python3 -c 'import struct, sys; open(sys.argv[1], "r+b").write(struct.pack("=q", int(sys.argv[2])))' \
        "$CLOCK_CONTROL" $(($1 * YEAR))
}
head -c 8 /dev/zero >"$CLOCK_CONTROL"
# Server and commands alike.
printf '#!/bin/sh\nLD_PRELOAD="%s" exec "%s" "$@"\n' "$RUN/clock.so" "$FOREBAY" >"$RUN/jumping"
chmod +x "$RUN/jumping"
FOREBAY=$RUN/jumping
THIS_YEAR=$(date +%Y)
year() { echo $((THIS_YEAR + $1)); }

# sane: what is shown has nothing that is years long.
sane() {
    no_errors p
    grep -q SUSPENDED "$DIR/.status" && fail "$1: $(cat "$DIR/.status")"
    pool_json status p >"$DIR/.json" || fail "$1: no status"
    jq -e '[.. | .elapsed_secs? // empty] | all(. < 3600)' "$DIR/.json" >"$DIR/.out" 2>&1 ||
        fail "$1: a scrub of years: $(cat "$DIR/.json")"
    run "$FOREBAY" pool stats p
    run "$FOREBAY" pool list -v
}
# shown YEAR: the history has a command of that year.
shown() {
    "$FOREBAY" pool history p >"$DIR/.history" || fail "no history"
    grep -q "^$1-" "$DIR/.history" || fail "nothing of the year $1 in the history: $(cat "$DIR/.history")"
}
writer() {
    rm -f "$DIR/told"
    python3 "$HERE/ledger.py" write "$SOCKET" p/v "$DIR/ledger" --seconds 900 --depth 4 --seed "$1" \
        --span $((16 << 20)) --told "$DIR/told" --expect-end >"$DIR/writer.out" 2>&1 &
    WRITER=$!
    goes_on "$DIR/told" 100 "the writer"
}
check() {
    python3 "$HERE/ledger.py" check "$SOCKET" p/v "$DIR/ledger" >"$DIR/check.out" 2>&1 ||
        fail "$1: $(cat "$DIR/writer.out" "$DIR/check.out")"
}

# As on another machine: where there are loop devices, its locks are not seen there.
LOOPS=()
if [ "$(id -u)" = 0 ] && [ -e /dev/loop-control ] && [ -s /etc/machine-id ] && unshare -m true 2>/dev/null; then
    head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$RUN/other-id"
    LOOPS=(yes)
fi
there() {
    FOREBAY_STATE_DIR=$RUN/second unshare -m --propagation private sh -c \
        'mount --bind "$0" /etc/machine-id && exec "$@"' "$RUN/other-id" "$@"
}

for round in $(seq "$ROUNDS"); do
    files 256M d0 d1 d2
    files 64M l0
    rm -f "$DIR/ledger"
    rm -rf "$RUN/state" "$RUN/second"
    jump 0
    run "$FOREBAY" pool create -f -o txg_timeout=1 p raidz1 "$DIR"/d{0,1,2} log "$DIR/l0"
    run "$FOREBAY" volume create -V 32M p/v
    serve p
    writer "$round"
    # To the day of its making, years on, years before it was made, before 1970, after 32 bits of seconds.
    for years in 0 10 -10 -80 80 1; do
        jump "$years"
        goes_on "$DIR/told" 200 "the writer, the clock ${years} years ahead,"
        # The one before may not have ended yet on a machine that is slow.
        run timeout 300 "$FOREBAY" pool wait p
        run "$FOREBAY" pool scrub p
        run "$FOREBAY" volume create -V 4M "p/year$years"
        sane "the clock ${years} years ahead"
        # Before 1970 is shown as 1970.
        if [ "$years" = -80 ]; then shown 1970; else shown "$(year "$years")"; fi
        alive "the clock ${years} years ahead"
    done
    run timeout 300 "$FOREBAY" pool wait p
    sane "after all jumps"
    if [ ${#LOOPS[@]} -gt 0 ]; then
        seen=()
        LOOPS=()
        for file in d0 d1 d2 l0; do
            loop=$(losetup -f --show --direct-io=on "$DIR/$file" 2>"$DIR/.out") || break
            LOOPS+=("$loop")
            undo "free_loop $loop '$DIR/$file'"
            seen+=(-d "$loop")
        done
    fi
    if [ ${#LOOPS[@]} = 4 ]; then
        # The owner's clock falls back while another looks, whose own is ahead or behind.
        for years in -30 30; do
            jump "$years"
            (
                for back in 5 -5 20 -20 0; do
                    sleep 0.5
                    jump "$back"
                done
            ) &
            jumps=$!
            refuse there "$FOREBAY" pool import "${seen[@]}" p
            grep -q 'in use there' "$DIR/.out" || fail "refused for another reason: $(cat "$DIR/.out")"
            wait "$jumps"
        done
        for loop in "${LOOPS[@]}"; do
            file=$(cat "/sys/block/${loop##*/}/loop/backing_file")
            free_loop "$loop" "$file"
            await 10 "$loop is free" is_free "$loop" "$file"
        done
    fi
    # Killed far ahead, imported far behind.
    jump 30
    goes_on "$DIR/told" 200 "the writer, far ahead"
    kill_server
    wait "$WRITER" || fail "the writer: $(cat "$DIR/writer.out")"
    jump -50
    serve p
    check "killed 30 years ahead, imported 50 behind"
    sane "imported 50 years behind"
    writer "$((round + 100))"
    run "$FOREBAY" volume create -V 4M p/behind
    shown "$(year -50)"
    kill -TERM "$WRITER"
    wait "$WRITER" || fail "the writer: $(cat "$DIR/writer.out")"
    # Exported later than it will be imported.
    jump 20
    stop_server
    run "$FOREBAY" pool export p
    jump -20
    run "$FOREBAY" pool import -d "$DIR" p
    serve p
    check "exported 20 years ahead, imported 20 behind"
    scrub_clean p
    sane "at the end"
    stop_server
    rm -f "$DIR"/d? "$DIR"/l?
done
pass "$ROUNDS rounds of 6 jumps, other machines $([ ${#LOOPS[@]} = 4 ] && echo refused || echo 'not tried (needs root and loop devices)')"
