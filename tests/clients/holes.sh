#!/usr/bin/env bash
# base:allocation tells data from holes, before and after trims, zeroes and an import.
. "$(dirname "$0")/lib.sh"
need_nbd_shell
need nbdinfo jq
begin
files 128M d0 d1
run "$FOREBAY" pool create p mirror "$DIR"/d{0,1}
run "$FOREBAY" volume create -V 64M p/v
serve p
map() { nbdinfo --map --json "$(uri p/v)" | jq -c '[.[] | [.offset, .length, .type]]'; }
expect() {
    local got
    got=$(map) || fail "nbdinfo --map"
    [ "$got" = "$2" ] || fail "$1: the map is $got, not $2"
}
M=1048576
expect "a new volume" "[[0,$((64 * M)),3]]"
run nbd_shell -u "$(uri p/v)" -c 'h.pwrite(b"d" * (8 << 20), 4 << 20); h.flush()'
expect "one run of data" "[[0,$((4 * M)),3],[$((4 * M)),$((8 * M)),0],[$((12 * M)),$((52 * M)),3]]"
run nbd_shell -u "$(uri p/v)" -c 'h.trim(2 << 20, 6 << 20, nbd.CMD_FLAG_FUA)'
TRIMMED="[[0,$((4 * M)),3],[$((4 * M)),$((2 * M)),0],[$((6 * M)),$((2 * M)),3],[$((8 * M)),$((4 * M)),0],[$((12 * M)),$((52 * M)),3]]"
expect "after a trim" "$TRIMMED"
run nbd_shell -u "$(uri p/v)" -c '
assert h.pread(2 << 20, 6 << 20) == bytes(2 << 20), "trimmed bytes read as zero"
h.zero(1 << 20, 10 << 20)
assert h.pread(2 << 20, 9 << 20) == b"d" * (1 << 20) + bytes(1 << 20)
# Sectors inside a block: written, zeroed and trimmed without touching their neighbours.
h.pwrite(b"x" * 4096, 40 << 20)
h.zero(512, (40 << 20) + 1024)
h.trim(512, (40 << 20) + 2048)
got = h.pread(4096, 40 << 20)
assert got[:1024] == b"x" * 1024 and got[1024:1536] == bytes(512) and got[2560:] == b"x" * 1536, "neighbours of a zeroed sector"
h.pwrite(b"y" * 512, 50 * (1 << 20) + 512)
assert h.pread(4096, 50 << 20) == bytes(512) + b"y" * 512 + bytes(3072)
h.zero(4096, 40 << 20, 0)
h.zero(4096, 50 << 20, 0)
h.zero(4096, 51 << 20, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(4096, 51 << 20) == bytes(4096)
h.zero(1 << 20, 60 << 20, nbd.CMD_FLAG_FAST_ZERO)
h.cache(1 << 20, 4 << 20)
h.flush()'
before=$(map)
kill_server
serve p
after=$(map)
# A map may tell zeroes that must stay allocated as data or as zero; it must not change its mind.
[ "$before" = "$after" ] || fail "the map was $before and is $after after kill -9"
run nbd_shell -u "$(uri p/v)" -c '
assert h.pread(2 << 20, 6 << 20) == bytes(2 << 20)
assert h.pread(2 << 20, 9 << 20) == b"d" * (1 << 20) + bytes(1 << 20)
assert h.pread(2 << 20, 4 << 20) == b"d" * (2 << 20)
h.trim(64 << 20, 0)
h.flush()'
expect "all trimmed" "[[0,$((64 * M)),3]]"
alive
scrub_clean p
pass "extents after writes, trims, zeroes and kill -9"
