#!/usr/bin/env bash
# An administrator without a plan, beside clients, and kill -9 in the middle of whatever is under way:
# devices go offline, rot, are replaced, logs are taken apart and put together, volumes come, grow and
# go. Every answer must hold, and a scrub must find nothing left to repair.
#   FOREBAY_TEST_SEED=N  plays the choices of another run again (kills hit where they hit)
. "$(dirname "$0")/lib.sh"
need python3 nbdcopy jq
begin
ROUNDS=$(longer 3 40)
SEED=${FOREBAY_TEST_SEED:-$RANDOM}
say "FOREBAY_TEST_SEED=$SEED"
RANDOM=$SEED

files 256M d0 d1 d2 d3 d4 d5
files 64M l0 l1 l2
random_file image 64M
WANT=$(hash_of image)
SHAPES=(raidz1 mirror raidz2)
shape=${SHAPES[$((SEED % 3))]}
say "$shape"
MEMBERS=(d0 d1 d2 d3)
[ "$shape" = mirror ] && MEMBERS=(d0 d1 d2)
run "$FOREBAY" pool create p "$shape" "${MEMBERS[@]/#/$DIR/}" log mirror "$DIR"/l0 "$DIR"/l1
run "$FOREBAY" volume create -V 64M p/still
serve p
run nbdcopy --flush image "$(uri p/still)"
pool() { "$FOREBAY" pool "$@"; }

# try COMMAND...: may be refused, with a line that says why; it neither hangs nor breaks the server.
TRIED=0
REFUSED=0
try() {
    TRIED=$((TRIED + 1))
    echo "$*" >>"$DIR/tried"
    timeout 60 "$FOREBAY" "$@" >"$DIR/try.out" 2>&1
    local code=$?
    [ $code = 124 ] && fail "a minute without an end: $*"
    [ $code = 0 ] && return 0
    REFUSED=$((REFUSED + 1))
    echo "   refused: $(cat "$DIR/try.out")" >>"$DIR/tried"
    [ "$(wc -l <"$DIR/try.out")" -ge 1 ] || fail "refused ($code) without a word: $*"
    grep -q 'panicked' "$DIR/try.out" && fail "$*: $(cat "$DIR/try.out")"
    alive "after $*"
    return 0
}
in_pool() {
    pool status p --json | jq -r '.. | objects | select(.kind == "device") | .name' | xargs -rn1 basename
}
pick() { local all=("$@"); echo "${all[$((RANDOM % ${#all[@]}))]}"; }
ROTTEN=0
VOLUMES=0
one_thing() {
    local here data logs away
    here=$(in_pool)
    data=$(echo "$here" | grep '^d')
    logs=$(echo "$here" | grep '^l')
    away=$(for f in d0 d1 d2 d3 d4 d5; do echo "$data" | grep -qx $f || echo $f; done)
    # shellcheck disable=SC2086 # lists
    case $((RANDOM % 14)) in
    # With rot somewhere everything else is needed.
    0 | 1) [ "$ROTTEN" = 0 ] && try pool offline p "$DIR/$(pick $data)" ;;
    2 | 3) for f in $data $logs; do try pool online p "$DIR/$f"; done ;;
    4) [ "$ROTTEN" = 0 ] && try pool replace -f p "$DIR/$(pick $data)" "$DIR/$(pick $away)" ;;
    5) try pool scrub p ;;
    6) try pool scrub -p p ;;
    7) try pool scrub -s p ;;
    8) try pool detach p "$DIR/$(pick $logs)" ;;
    9)
        local free
        free=$(for f in l0 l1 l2; do echo "$logs" | grep -qx $f || echo $f; done)
        [ -n "$free" ] && [ -n "$logs" ] && try pool attach -f p "$DIR/$(pick $logs)" "$DIR/$(pick $free)"
        ;;
    10)
        VOLUMES=$((VOLUMES + 1))
        try volume create -V 16M "p/extra$VOLUMES"
        ;;
    11) [ "$VOLUMES" -gt 0 ] && try volume resize -V $((4 + RANDOM % 40))M "p/extra$VOLUMES" ;;
    12) [ "$VOLUMES" -gt 0 ] && try volume destroy "p/extra$((1 + RANDOM % VOLUMES))" ;;
    13) # One device rots once; it is healed before another may.
        if [ "$ROTTEN" = 0 ] && [ "$(pool list --json | jq -r '.pools[0].health')" = ONLINE ]; then
            ROTTEN=1
            echo "rot" >>"$DIR/tried"
            python3 - "$DIR/$(pick $data)" $RANDOM <<'P'
import os, random, sys
rng = random.Random(int(sys.argv[2]))
with open(sys.argv[1], "r+b") as device:
    size = os.fstat(device.fileno()).st_size
    for _ in range(100):
        device.seek(rng.randrange(4 << 20, size - (4 << 20)) & ~511)
        device.write(rng.randbytes(4096))
P
        fi
        ;;
    esac
}
whole() {
    local f
    # What was repaired in many places stays marked until somebody has looked.
    run "$FOREBAY" pool clear p
    for f in $(in_pool); do timeout 60 "$FOREBAY" pool online p "$DIR/$f" >/dev/null 2>&1; done
    timeout 120 "$FOREBAY" pool resilver -w p >/dev/null 2>&1
    await 60 "the pool is whole again" sh -c "'$FOREBAY' pool list --json | jq -e '.pools[0].health == \"ONLINE\"'"
}

for round in $(seq "$ROUNDS"); do
    run "$FOREBAY" volume create -V 4M "p/s$round"
    run "$FOREBAY" volume create -V 8M "p/t$round"
    rm -f "$DIR/stamps.told"
    echo "== round $round" >>"$DIR/tried"
    python3 "$HERE/stamps.py" load "$SOCKET" "$DIR/stamps" 600 "$round" \
        "p/s$round=serial" "p/t$round=deep" >"$DIR/writer.out" 2>&1 &
    writer=$!
    goes_on "$DIR/stamps.told" 200 "the stamps"
    for _ in $(seq $((3 + RANDOM % 6))); do
        one_thing
        goes_on "$DIR/stamps.told" 50 "the stamps"
    done
    alive
    kill_server
    wait "$writer" || fail "round $round, the stamps: $(cat "$DIR/writer.out")"
    serve p
    python3 "$HERE/stamps.py" judge "$SOCKET" "$DIR/stamps" >"$DIR/judge.out" 2>&1 ||
        fail "after kill $round: $(tail -n 40 "$DIR/tried") $(cat "$DIR/writer.out" "$DIR/judge.out")"
    [ "$(hash_volume p/still)" = "$WANT" ] || fail "round $round: what nobody touched reads differently: $(tail -n 40 "$DIR/tried")"
    run "$FOREBAY" volume destroy "p/s$round"
    run "$FOREBAY" volume destroy "p/t$round"
    if [ $((round % 3)) = 0 ]; then
        whole
        timeout 120 "$FOREBAY" pool scrub -w p >"$DIR/.out" 2>&1 || fail "a scrub: $(cat "$DIR/.out")"
        ROTTEN=0
        no_errors p
        run "$FOREBAY" pool clear p
        [ "$(hash_volume p/still)" = "$WANT" ] || fail "round $round: reads differently after the scrub"
    fi
done
whole
scrub_clean p
stop_server
pass "$shape, $ROUNDS kills, $TRIED commands, $REFUSED of them refused"
