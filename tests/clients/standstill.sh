#!/usr/bin/env bash
# A member of a mirror lies on a file system whose server stands still (nbdfuse on a stopped nbdkit), so
# that even the submission of a write to it blocks. The deadline of the device counts, commands are
# answered, another pool and, after the deadline, the same pool go on; a device that hangs delays neither
# a look for pools nor the end of the server for ever.
#   OVER_LOOP=1: the member is a loop device on that file (standstill-loop.sh).
. "$(dirname "$0")/lib.sh"
need python3 nbdkit nbdfuse fusermount3
[ -e /dev/fuse ] || skip "there is no /dev/fuse here"
if [ -n "${OVER_LOOP:-}" ]; then
    need losetup
    need_root "loop devices"
    [ -e /dev/loop-control ] || skip "there are no loop devices here"
fi
begin
# The member's file system: nbdfuse, which hangs when nbdkit does.
BAD=$RUN/bad/nbd
TIMEOUT_SECONDS=5

mkdir -p "$RUN/bad"
files 160M d0 bad.img e0
files 64M l0 l1
nbdkit -f -U "$RUN/k" file "$DIR/bad.img" >"$DIR/below.log" 2>&1 &
BELOW=$!
disown $BELOW
undo "kill -CONT $BELOW; kill -9 $BELOW"
await 10 "nbdkit listens" test -S "$RUN/k"
nbdfuse "$RUN/bad/" "nbd+unix:///?socket=$RUN/k" >"$DIR/nbdfuse.log" 2>&1 &
FUSE=$!
disown $FUSE
undo "kill -CONT $BELOW; fusermount3 -uz '$RUN/bad'; kill -9 $FUSE"
await 10 "nbdfuse shows the device" test -e "$BAD"
if [ -n "${OVER_LOOP:-}" ]; then
    LOOP=$(losetup --find --show --direct-io=on "$BAD" 2>.out || losetup --find --show "$BAD" 2>.out) ||
        skip "losetup: $(cat .out)"
    undo "kill -CONT $BELOW; free_loop $LOOP '$BAD'"
    BAD=$LOOP
fi

run "$FOREBAY" pool create -o txg_timeout=1 -o device_timeout=$TIMEOUT_SECONDS p \
    mirror "$DIR/d0" "$BAD" log mirror "$DIR/l0" "$DIR/l1"
run "$FOREBAY" volume create -V 96M p/v
run "$FOREBAY" pool create -o txg_timeout=1 q "$DIR/e0"
run "$FOREBAY" volume create -V 64M q/v

# load VOLUME NAME: durable writes until ended.
load() {
    rm -f "$DIR/$2.told"
    python3 "$HERE/ledger.py" write "$SOCKET" "$1" "$DIR/$2.ledger" --seconds 600 --depth 8 \
        --span $((24 << 20)) --expect-end --told "$DIR/$2.told" >"$DIR/$2.out" 2>&1 &
    eval "$2=\$!"
}
# unload VOLUME NAME WHEN
unload() {
    local pid=${!2}
    kill -TERM "$pid"
    wait "$pid" || fail "$3: writes to $1 suffered: $(cat "$DIR/$2.out")"
    python3 "$HERE/ledger.py" check "$SOCKET" "$1" "$DIR/$2.ledger" >"$DIR/check.out" 2>&1 ||
        fail "$3: $(cat "$DIR/$2.out" "$DIR/check.out")"
}
# answers COMMAND...: a command is answered, and not because the device has come back.
answers() {
    timeout 60 "$@" >"$DIR/.out" 2>&1 ||
        fail "no answer while a device stood still: $* $(cat "$DIR/.out" "/proc/$SERVER/wchan")"
}
line() { "$FOREBAY" pool status p | awk -v d="$BAD" '$1 == d'; }
named() { line | grep -qv ONLINE; }
well() { "$FOREBAY" pool list p | grep -q ONLINE; }
stop_device() { kill -STOP $BELOW; }
start_device() { kill -CONT $BELOW; }

serve_both() {
    rm -f "$SOCKET"
    SERVES=$((SERVES + 1))
    SERVE_LOG=$DIR/serve.$SERVES.log
    "$FOREBAY" serve p q --listen "unix:$SOCKET" >"$SERVE_LOG" 2>&1 &
    SERVER=$!
    disown "$SERVER"
    await 60 "the server is ready" grep -q 'ready: ' "$SERVE_LOG"
}

say "a member stands still under load"
serve_both
load p/v held
load q/v free
goes_on "$DIR/held.told" 500 "the writer of p"
stop_device
goes_on "$DIR/free.told" 2000 "the writer of the other pool"
answers "$FOREBAY" pool status p
answers "$FOREBAY" pool list
await 60 "the status names the device" named
goes_on "$DIR/held.told" 2000 "the writer of p, without the device"
answers "$FOREBAY" pool status p
answers "$FOREBAY" pool set txg_timeout=2 p
answers "$FOREBAY" pool offline p "$BAD"
unload q/v free "beside a device that stands still"
unload p/v held "without a device that stands still"

say "it goes on, and is part of the pool again"
start_device
await 20 "the device can be taken back" "$FOREBAY" pool online p "$BAD"
run "$FOREBAY" pool resilver -w p
await 20 "the pool is well" well
load p/v held
goes_on "$DIR/held.told" 500 "the writer of p"
unload p/v held "after the device came back"
scrub_clean p

say "looking for pools, and the end of the server, while it stands still"
load p/v held
goes_on "$DIR/held.told" 500 "the writer of p"
stop_device
mkdir "$DIR/places"
ln -s "$BAD" "$DIR/places/a"
ln -s "$DIR/e0" "$DIR/places/z"
timeout 100 "$FOREBAY" pool import -d "$DIR/places" >"$DIR/.out" 2>&1
[ $? -lt 124 ] || fail "looking for pools waits for a device that stands still: $(cat "$DIR/.out")"
kill -INT "$SERVER"
await 60 "the server says how it ended" grep -q 'stopped: ' "$SERVE_LOG"
wait "$held" || fail "the end of the server is no error of its writer: $(cat "$DIR/held.out")"
start_device
ended "$SERVER" "the server, whose device goes on again,"
SERVER=
serve_both
python3 "$HERE/ledger.py" check "$SOCKET" p/v "$DIR/held.ledger" >"$DIR/check.out" 2>&1 ||
    fail "after a stop beside a device that stood still: $(cat "$DIR/check.out")"
stop_server
pass "commands and another pool were served while a device stood still"
