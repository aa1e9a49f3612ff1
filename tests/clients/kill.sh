#!/usr/bin/env bash
# kill -9 in the middle of writes, several times on each layout: what was answered is there, and
# each volume is a prefix of its history.
. "$(dirname "$0")/lib.sh"
need python3
begin
ROUNDS=$(longer 2 12)
ANSWERS=$(longer 1500 10000)

# over NAME LAYOUT...: rounds of FUA writes and of writes with flushes on four connections.
over() {
    local pool=$1
    shift
    files 256M d0 d1 d2 d3 d4
    files 128M l0 l1
    run "$FOREBAY" pool create -f "$pool" "$@"
    run "$FOREBAY" volume create -V 100M "$pool/v"
    for round in $(seq "$ROUNDS"); do
        for flags in "" "--flush-every 8 --connections 4 --depth 8" "--block 512 --flush-every 3"; do
            serve "$pool"
            local ledger="$DIR/$pool.${flags//[^0-9]/}"
            # Each kind of load has a volume of its own: one ledger knows one volume.
            local volume="$pool/v"
            case $flags in
            *connections*) volume="$pool/w" ;;
            *512*) volume="$pool/x" ;;
            esac
            if [ "$volume" != "$pool/v" ] && [ "$round" = 1 ]; then
                run "$FOREBAY" volume create -V 24M "$volume"
            fi
            # shellcheck disable=SC2086
            rm -f "$DIR/told"
            python3 "$HERE/ledger.py" write "$SOCKET" "$volume" "$ledger" --seconds 600 --told "$DIR/told" \
                --expect-end --seed "$round" $flags >"$DIR/writer.out" 2>&1 &
            local writer=$!
            goes_on "$DIR/told" $((ANSWERS + RANDOM % ANSWERS)) "the writer"
            alive
            kill_server
            wait "$writer" || fail "$pool, the writer: $(cat "$DIR/writer.out")"
            serve "$pool"
            python3 "$HERE/ledger.py" check "$SOCKET" "$volume" "$ledger" >"$DIR/check.out" 2>&1 ||
                fail "$*: after kill $round: $(cat "$DIR/writer.out" "$DIR/check.out")"
            kill_server
        done
        # And two volumes whose whole history is known: each must be a prefix of it.
        serve "$pool"
        run "$FOREBAY" volume create -V 4M "$pool/s$round"
        run "$FOREBAY" volume create -V 8M "$pool/t$round"
        rm -f "$DIR/stamps.told"
        python3 "$HERE/stamps.py" load "$SOCKET" "$DIR/stamps" 600 "$round" \
            "$pool/s$round=serial" "$pool/t$round=deep" >"$DIR/writer.out" 2>&1 &
        local writer=$!
        goes_on "$DIR/stamps.told" $((ANSWERS + RANDOM % ANSWERS)) "the stamps"
        alive
        kill_server
        wait "$writer" || fail "$pool, the stamps: $(cat "$DIR/writer.out")"
        serve "$pool"
        python3 "$HERE/stamps.py" judge "$SOCKET" "$DIR/stamps" >"$DIR/judge.out" 2>&1 ||
            fail "$*: after kill $round: $(cat "$DIR/writer.out" "$DIR/judge.out")"
        run "$FOREBAY" volume destroy "$pool/s$round"
        run "$FOREBAY" volume destroy "$pool/t$round"
        kill_server
    done
    serve "$pool"
    scrub_clean "$pool"
    stop_server
    run "$FOREBAY" pool destroy "$pool"
    say "$*: $(tail -n 1 "$DIR/check.out"); $(tail -n 1 "$DIR/judge.out")"
    rm -f "$DIR"/d? "$DIR"/l?
}

cd "$DIR" || exit 1
d() { for i in "$@"; do echo "$DIR/d$i"; done; }
l() { for i in "$@"; do echo "$DIR/l$i"; done; }
# shellcheck disable=SC2046
{
    over one $(d 0)
    over mirr mirror $(d 0 1) log $(l 0)
    over zone raidz1 $(d 0 1 2 3) log mirror $(l 0 1)
    if [ "$LONG" != 0 ]; then
        over ztwo raidz2 $(d 0 1 2 3 4) log $(l 0) $(l 1)
        over ztri raidz3 $(d 0 1 2 3 4)
        over stri raid0 $(d 0 1 2) log mirror $(l 0 1)
    fi
}
pass "$((ROUNDS * 4)) kills on each layout"
