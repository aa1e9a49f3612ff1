#!/usr/bin/env bash
# The error clients of libnbd itself, built from Debian's source of libnbd and unchanged: each starts
# `nbdkit -s`, and what answers is a Forebay server (relay.py), beside another client's writes, which must
# not notice. The exit code of each program is the verdict.
. "$(dirname "$0")/lib.sh"
. "$HERE/source.lib.sh"
need cc dpkg-source python3 nbdinfo
begin
BUILT=${CARGO_TARGET_DIR:-$ROOT/target}/libnbd-clients

# What must be refused, by the library (client) or by Forebay (server), and misuse while connected.
PROGRAMS="errors-client-oversize errors-client-unaligned errors-client-unknown-flags errors-client-zerosize
errors-server-invalid-offset errors-server-unaligned errors-server-unknown-flags errors-server-zerosize
errors-bad-cookie errors-connect-twice errors-not-negotiating errors-notify-not-blocked
errors-pread-structured"
# Other tests of the same source that end a connection, or look at it, in ways that clients seldom do.
PROGRAMS+=" server-death shutdown-flags opt-abort opt-list-meta pread-initialize read-write-flag closure-lifetimes"
# Not run, and why:
#   errors-{client,server}-unadvertised-cmd    want an export that is read-only and cannot trim; every
#                                              volume can be written and trimmed
#   errors-multiple-disconnects                its own plugin fails reads with ENOMEM and keeps writes
#                                              waiting until a file goes
#   errors-{enum,bitmask,connect-null,name-too-long,not-connected,poll-no-fd}    never reach a server

if [ ! -e "$BUILT/complete" ]; then
    fetch_source libnbd || skip "Debian's source of libnbd cannot be had here"
    # Its configure wants tools for other languages. The header is the source's, the library the system's.
    mkdir -p "$DIR/config" "$BUILT"
    : >"$DIR/config/config.h"
    for program in $PROGRAMS; do
        cc -O1 -w -D_GNU_SOURCE -I"$DIR/config" -I"$SOURCE/include" -I"$SOURCE/common/include" \
            -o "$BUILT/$program" "$SOURCE/tests/$program.c" "$SOURCE/tests/requires.c" \
            -l:libnbd.so.0 -lpthread >"$DIR/cc.log" 2>&1 ||
            skip "$program of ${SOURCE##*/} does not compile here: $(tail -n 3 "$DIR/cc.log")"
    done
    touch "$BUILT/complete"
    say "built from ${SOURCE##*/}"
fi

files 512M d0 d1
files 64M l0
export RELAY_SIZES="1048576 2097152 68157440"
run "$FOREBAY" pool create p mirror "$DIR"/d{0,1} log "$DIR/l0"
run "$FOREBAY" volume create -V 32M p/beside
for size in $RELAY_SIZES; do run "$FOREBAY" volume create -V "$size" "p/$size"; done
serve p
mkdir "$RUN/bin"
printf '#!/bin/sh\nexec python3 "%s" "%s" p "%s" "$@"\n' "$HERE/relay.py" "$SOCKET" "$DIR/notes" >"$RUN/bin/nbdkit"
chmod +x "$RUN/bin/nbdkit"
python3 "$HERE/ledger.py" write "$SOCKET" p/beside "$DIR/ledger" --seconds 900 --depth 4 \
    --told "$DIR/told" --expect-end >"$DIR/writer.out" 2>&1 &
WRITER=$!
undo "kill -9 $WRITER"
goes_on "$DIR/told" 10 "the client beside"
programs=0
for program in $PROGRAMS; do
    : >"$DIR/notes"
    PATH=$RUN/bin:$PATH timeout 300 "$BUILT/$program" >"$DIR/$program.out" 2>&1 ||
        fail "$program: exit code $? $(printf '\n'; tail -n 5 "$DIR/$program.out")"
    # One that was never connected shows nothing.
    [ -s "$DIR/notes" ] || fail "$program did not reach the server: $(tail -n 5 "$DIR/$program.out")"
    alive "$program"
    lives "$WRITER" || fail "the client beside $program suffered: $(cat "$DIR/writer.out")"
    programs=$((programs + 1))
done
goes_on "$DIR/told" 100 "the client beside"
kill -TERM "$WRITER"
wait "$WRITER" || fail "the client beside: $(cat "$DIR/writer.out")"
run python3 "$HERE/ledger.py" check "$SOCKET" p/beside "$DIR/ledger"
scrub_clean p
stop_server
pass "$programs programs of libnbd, $(cat "$DIR/writer.out")"
