#!/usr/bin/env bash
# The test client of the NBD project itself, built from Debian's source of nbd: throughput, writes,
# flushes, the handshake, and its integrity test with recorded transactions; and
# nbd-client's list of exports.
. "$(dirname "$0")/lib.sh"
. "$HERE/source.lib.sh"
need cc pkg-config dpkg-source nbd-client
pkg-config --exists glib-2.0 || skip "glib cannot be compiled against here"
begin
BUILT=${CARGO_TARGET_DIR:-$ROOT/target}/nbd-tester

if [ ! -x "$BUILT/nbd-tester-client" ]; then
    fetch_source nbd || skip "Debian's source of nbd cannot be had here"
    # Its configure wants tools for parts that are not needed here; nor is TLS.
    mkdir "$DIR/config"
    for name in HAVE_FDATASYNC HAVE_MKSTEMP; do echo "#define $name 1"; done \
        >"$DIR/config/config.h"
    for type in "SHORT_INT 2" "INT 4" "LONG_INT 8" "LONG_LONG_INT 8"; do
        echo "#define SIZEOF_UNSIGNED_$type"
    done >>"$DIR/config/config.h"
    # shellcheck disable=SC2046
    cc -O1 -w -D_GNU_SOURCE -I"$DIR/config" -I"$SOURCE" $(pkg-config --cflags glib-2.0) \
        -o "$DIR/nbd-tester-client" "$SOURCE/tests/run/nbd-tester-client.c" \
        "$SOURCE/cliserv.c" $(pkg-config --libs glib-2.0) \
        >"$DIR/cc.log" 2>&1 || skip "nbd does not compile here: $(tail -n 3 "$DIR/cc.log")"
    mkdir -p "$BUILT"
    cp "$SOURCE"/tests/run/*.tr "$BUILT/"
    mv "$DIR/nbd-tester-client" "$BUILT/"
    say "built from ${SOURCE##*/}"
fi
tester() { # WHAT ARGUMENT...
    local what=$1
    shift
    timeout 300 "$BUILT/nbd-tester-client" "$@" >"$DIR/tester.out" 2>&1 ||
        fail "$what, exit code $?: $(tail -n 20 "$DIR/tester.out")"
    alive "$what"
    say "$what: $(tail -n 1 "$DIR/tester.out" | sed 's/^.*: //')"
}
files 512M d0 d1
files 64M l0
run "$FOREBAY" pool create p mirror "$DIR"/d{0,1} log "$DIR/l0"
run "$FOREBAY" volume create -V 50M p/v
# The integrity test wants a volume that holds zeros.
run "$FOREBAY" volume create -V 50M p/w
serve p
U=(-u "$SOCKET")
tester reads -N p/v "${U[@]}"
tester writes -N p/v -w "${U[@]}"
tester "writes and flushes" -N p/v -w -f "${U[@]}"
# Not -o: it reads a byte past a sector, and then waits for the data of a reply that is an error.
tester handshakes -h -N p/v "${U[@]}"
tester integrity -i -t "$BUILT/integrity-test.tr" -N p/w "${U[@]}"
# Not integrityhuge: it asks for up to 50 MB at once, and 32 MiB is what a client may ask for.
nbd-client -l -u "$SOCKET" >"$DIR/list" 2>&1 || nbd-client -l -unix "$SOCKET" >"$DIR/list" 2>&1
grep -q '^p/v$' "$DIR/list" || fail "nbd-client lists: $(cat "$DIR/list")"
grep -q '^p/w$' "$DIR/list" || fail "nbd-client lists: $(cat "$DIR/list")"
scrub_clean p
stop_server
pass "nbd-tester-client and nbd-client"
