#!/usr/bin/env bash
# Every kind of group, at its narrowest and with 24 devices: killed, without as many devices as it may
# lose, read and written all the same, and whole again when they are back.
. "$(dirname "$0")/lib.sh"
need nbdcopy
begin
random_file first 12M
random_file second 12M
FIRST=$(hash_of first)
SECOND=$(hash_of second)
holds() { [ "$(hash_volume p/v)" = "$1" ] || fail "$SHAPE, $2: the volume reads differently"; }
# The ARRAY from place FROM on, COUNT names of devices.
some() { for ((i = $1; i < $1 + $2; i++)); do echo "$DIR/d$i"; done; }

shape() { # LEVEL DEVICES SPARE [LOG...]
    local level=$1 devices=$2 spare=$3
    shift 3
    SHAPE="$level of $devices"
    say "$SHAPE${1:+, $*}"
    for ((i = 0; i < devices; i++)); do files 96M "d$i"; done
    files 64M l0 l1
    # shellcheck disable=SC2046 # one word for each device
    run "$FOREBAY" pool create p "$level" $(some 0 "$devices") "$@"
    run "$FOREBAY" volume create -V 12M p/v
    serve p
    run nbdcopy --flush first "$(uri p/v)"
    kill_server
    # The first ones go while nobody looks.
    mkdir gone
    [ "$spare" = 0 ] || mv $(some 0 "$spare") gone/
    serve p
    holds "$FIRST" "killed, $spare missing"
    run nbdcopy --flush second "$(uri p/v)"
    holds "$SECOND" "written with $spare missing"
    kill_server
    [ "$spare" = 0 ] || mv gone/* "$DIR/"
    rmdir gone
    serve p
    run "$FOREBAY" pool resilver -w p
    holds "$SECOND" "resilvered"
    if [ "$spare" != 0 ]; then
        # What they missed is on them now: the last ones go, with the operator's word.
        # shellcheck disable=SC2046
        run "$FOREBAY" pool offline p $(some $((devices - spare)) "$spare")
        refuse "$FOREBAY" pool offline p "$DIR/d0"
        holds "$SECOND" "the last $spare offline"
        run nbdcopy --flush first "$(uri p/v)"
        # shellcheck disable=SC2046
        run "$FOREBAY" pool online -w p $(some $((devices - spare)) "$spare")
        holds "$FIRST" "whole again"
    fi
    [ "$("$FOREBAY" pool list -H -o health)" = ONLINE ] || fail "$SHAPE: $("$FOREBAY" pool status)"
    scrub_clean p
    alive
    stop_server
    run "$FOREBAY" pool destroy p
    rm -f d[0-9]* l0 l1
    SHAPES=$((${SHAPES:-0} + 1))
}

shape raid0 1 0
shape raid0 24 0 log "$DIR/l0"
shape mirror 2 1
shape mirror 24 23 log mirror "$DIR/l0" "$DIR/l1"
for level in 1 2 3; do
    shape "raidz$level" $((level + 1)) "$level" log "$DIR/l0" "$DIR/l1"
    shape "raidz$level" 24 "$level" log mirror "$DIR/l0" "$DIR/l1"
done
if [ "$LONG" != 0 ]; then
    for devices in $(seq 2 23); do
        shape raid0 "$devices" 0
        shape mirror "$devices" $((devices - 1)) log "$DIR/l0"
        for level in 1 2 3; do
            [ "$devices" -le $((level + 1)) ] || shape "raidz$level" "$devices" "$level"
        done
    done
fi
pass "$SHAPES shapes, 1 to 24 devices"
