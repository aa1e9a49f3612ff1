#!/usr/bin/env bash
# Devices that go bad under load, below the server: qemu's blkdebug fails writes, reads and flushes,
# nbdkit fails, delays, stands still and dies. The pool goes on, no answered write is lost, the status
# names the device, and when the device is good again it becomes part of the pool again.
. "$(dirname "$0")/lib.sh"
need python3 jq qemu-storage-daemon nbdkit nbdfuse fusermount3 nbdcopy
[ -e /dev/fuse ] || skip "there is no /dev/fuse here"
begin
round=0
BAD=$RUN/bad/nbd

# show URI: the device behind it, as $BAD.
show() {
    mkdir -p "$RUN/bad"
    nbdfuse "$RUN/bad/" "$1" >"$DIR/nbdfuse.log" 2>&1 &
    BAD_FUSE=$!
    disown $BAD_FUSE
    undo "fusermount3 -uz '$RUN/bad'; kill -9 $BAD_FUSE"
    await 10 "nbdfuse shows the device" test -e "$BAD"
}
hide() {
    fusermount3 -u "$RUN/bad" 2>/dev/null || fusermount3 -uz "$RUN/bad" 2>/dev/null
    kill -9 "$BAD_FUSE" "$BELOW" 2>/dev/null
    ended "$BELOW" "the server of the bad device, killed,"
    rm -f "$RUN/k"
}
# blkdebug EVENT NUMBER ONCE: from the NUMBERth such event on, that operation fails (once, or always).
blkdebug() {
    python3 - "$@" "$DIR/bad.img" >"$DIR/blkdebug.json" <<'P'
import json, sys
event, number, once, image = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "once", sys.argv[4]
print(json.dumps({
    "driver": "raw", "node-name": "bad", "file": {
        "driver": "blkdebug", "image": {"driver": "file", "filename": image, "discard": "unmap"},
        "set-state": [{"event": event, "state": i, "new_state": i + 1} for i in range(1, number)],
        "inject-error": [{"event": event, "state": number, "once": once, "errno": 5}]}}))
P
    qemu-storage-daemon --blockdev "$(cat "$DIR/blkdebug.json")" \
        --nbd-server "addr.type=unix,addr.path=$RUN/k,max-connections=16" \
        --export nbd,id=x,node-name=bad,name=bad,writable=on >"$DIR/below.log" 2>&1 &
    BELOW=$!
    disown $BELOW
    undo "kill -9 $BELOW"
    await 10 "qemu-storage-daemon listens: $DIR/below.log" test -S "$RUN/k"
    show "nbd+unix:///bad?socket=$RUN/k"
}
kit() { # ARGUMENT...: nbdkit over the same image
    rm -f "$RUN/k"
    nbdkit -f -U "$RUN/k" "$@" >"$DIR/below.log" 2>&1 &
    BELOW=$!
    disown $BELOW
    undo "kill -9 $BELOW"
    await 10 "nbdkit listens" test -S "$RUN/k"
    show "nbd+unix:///?socket=$RUN/k"
}
load() {
    round=$((round + 1))
    rm -f "$DIR/told"
    python3 "$HERE/ledger.py" write "$SOCKET" p/v "$DIR/ledger" --seconds 600 --seed $round --depth 8 \
        --span $((24 << 20)) --expect-end --told "$DIR/told" >"$DIR/writer.out" 2>&1 &
    WRITER=$!
    goes_on "$DIR/told" 500 "the writer"
}
# loaded WHAT: ends the load; nothing of it may have failed or been lost.
loaded() {
    goes_on "$DIR/told" 500 "the writer"
    kill -TERM $WRITER
    wait $WRITER || fail "$1: writes suffered: $(cat "$DIR/writer.out")"
    python3 "$HERE/ledger.py" check "$SOCKET" p/v "$DIR/ledger" >"$DIR/check.out" 2>&1 ||
        fail "$1: $(cat "$DIR/writer.out" "$DIR/check.out")"
}
line() { "$FOREBAY" pool status p | awk -v d="$BAD" '$1 == d'; }
named() { line | grep -qv ONLINE; }
counted() { line | awk -v c="$1" '{ exit !($c > 0) }'; }
well() { "$FOREBAY" pool list p | grep -q ONLINE; }
# again WHAT: the device is good once more.
again() {
    run "$FOREBAY" pool online p "$BAD"
    run "$FOREBAY" pool resilver -w p
    await 20 "the pool is well after $1" well
    load
    loaded "after $1"
}
# begin_pool ROLE: a pool in which $BAD is a data device or one side of the log.
begin_pool() {
    rm -f "$DIR"/ledger "$DIR"/d? "$DIR"/l? "$DIR/bad.img"
    files 160M d0 d2
    files 64M l0
    if [ "$1" = data ]; then
        files 64M l1
        truncate -s 160M "$DIR/bad.img"
        kit file "$DIR/bad.img"
        run "$FOREBAY" pool create -f -o txg_timeout=1 p raidz1 "$DIR/d0" "$BAD" "$DIR/d2" \
            log mirror "$DIR/l0" "$DIR/l1"
    else
        files 160M d1
        truncate -s 64M "$DIR/bad.img"
        kit file "$DIR/bad.img"
        run "$FOREBAY" pool create -f -o txg_timeout=1 p raidz1 "$DIR"/d{0,1,2} \
            log mirror "$DIR/l0" "$BAD"
    fi
    run "$FOREBAY" volume create -V 96M p/v
    hide
}
end_pool() {
    alive
    "$FOREBAY" pool status p | grep -q "$BAD" || fail "the device is no longer listed"
    scrub_clean p
    kill_server
    serve p
    python3 "$HERE/ledger.py" check "$SOCKET" p/v "$DIR/ledger" >"$DIR/check.out" 2>&1 ||
        fail "after a kill: $(cat "$DIR/check.out")"
    stop_server
    run "$FOREBAY" pool destroy p
    hide
}

# Column of the counter, event, at which one it fails, on which device.
while read -r what event number role column; do
    [ -n "$what" ] || continue
    say "blkdebug: a $what fails once on a $role device"
    begin_pool "$role"
    blkdebug "$event" "$number" once
    serve p
    load
    await 40 "the status shows the device that failed a $what" named
    loaded "a failed $what of the $role device"
    counted "$column" || fail "the failure is not counted: $("$FOREBAY" pool status p)"
    again "a failed $what"
    end_pool
done <<T
flush flush_to_disk 20 data 4
write write_aio     60 log  4
$([ "$LONG" = 0 ] || cat <<'U'
write write_aio     60 data 4
flush flush_to_disk 60 log  4
U
)
T

if [ "$LONG" != 0 ]; then
say "blkdebug: reads fail for good on a data device"
begin_pool data
blkdebug read_aio 60 always
serve p
load
loaded "before the reads"
for _ in 1 2 3; do
    python3 "$HERE/ledger.py" check "$SOCKET" p/v "$DIR/ledger" >"$DIR/check.out" 2>&1 ||
        fail "reads with a device that cannot read: $(cat "$DIR/check.out")"
    "$FOREBAY" pool scrub -w p >/dev/null 2>&1
done
counted 3 || fail "read errors are not counted: $("$FOREBAY" pool status p)"
load
loaded "with a device that cannot read"
kill_server
hide
kit file "$DIR/bad.img"
serve p
again "reads failed"
end_pool
fi

say "nbdkit: a data device fails everything, and recovers"
begin_pool data
kit --filter=error file "$DIR/bad.img" error=EIO error-rate=100% error-file="$RUN/fail"
serve p
load
touch "$RUN/fail"
await 20 "the status names it" named
loaded "everything failed"
rm "$RUN/fail"
again "everything failed"
say "nbdkit: it stands still for three seconds"
load
kill -STOP "$BELOW"
# Shorter than any deadline: this is the fault itself.
sleep 3
kill -CONT "$BELOW"
loaded "a device that stood still"
say "nbdkit: it dies, comes back at the same place, and is slow"
load
kill -9 "$BELOW"
await 20 "the status names it" named
loaded "a dead device"
hide
kit --filter=delay file "$DIR/bad.img" delay-write=30ms delay-read=5ms
again "a death"
end_pool

say "nbdkit: it ignores flushes and FUA, and forgets with the power"
begin_pool data
# What it is given since now is in its cache, which dies with it.
kit --filter=cache --filter=fua file "$DIR/bad.img" cache=unsafe fuamode=discard
before=$(hash_of "$DIR/bad.img")
serve p
load
loaded "a device that lies"
[ "$(hash_of "$DIR/bad.img")" = "$before" ] || fail "it has written something: it was to lie"
kill_server
hide
kit file "$DIR/bad.img"
serve p
python3 "$HERE/ledger.py" check "$SOCKET" p/v "$DIR/ledger" >"$DIR/check.out" 2>&1 ||
    fail "a device that lied: $(cat "$DIR/writer.out" "$DIR/check.out")"
run "$FOREBAY" pool resilver -w p
load
loaded "after a device that lied"
end_pool

if [ "$LONG" = 0 ]; then
    pass "two failures under blkdebug, four under nbdkit"
fi
say "nbdkit: a log side dies, comes back at the same place"
begin_pool log
kit file "$DIR/bad.img"
serve p
load
kill -9 "$BELOW"
await 20 "the status names it" named
loaded "a dead log side"
hide
kit file "$DIR/bad.img"
again "a death of a log side"
end_pool
pass "five failures under blkdebug, five under nbdkit"
