#!/usr/bin/env bash
# A cache device of a real server: what is read again comes from it, also after kill -9 and an export; one that is
# overwritten with noise, deleted, another pool's, or that hangs for real costs time and no wrong or failed read.
. "$(dirname "$0")/lib.sh"
need fio jq python3 nbdkit nbdfuse fusermount3
fio --enghelp 2>/dev/null | grep -qw nbd || skip "this fio has no engine for NBD"
[ -e /dev/fuse ] || skip "there is no /dev/fuse here"
begin
files 512M d0 d1
files 64M l0
files 1G k0
run "$FOREBAY" pool create -o cache_size=4M p mirror "$DIR"/d{0,1} log "$DIR/l0" cache "$DIR/k0"
run "$FOREBAY" volume create -V 48M p/v
# job HOW...: every block, at random or in order, checked against the sums that the first run wrote.
job() {
    run fio --name=v --ioengine=nbd --uri="$(uri p/v)" --bs=4k --size=48M --iodepth=8 --verify=crc32c \
        --verify_fatal=1 --randrepeat=0 --output="$DIR/fio.out" "$@"
}
reads() { job --rw=randread; }
figure() { "$FOREBAY" pool stats p --json | jq -r ".pools[0].cache_devices[0].$1"; }
main_reads() { "$FOREBAY" pool stats p --json | jq "[.pools[0].devices[].reads] | add"; }
line() { "$FOREBAY" pool status p | awk '$1 == "cache" { found = 1; next } found { print; exit }'; }
state() { line | grep -q "$1"; }
at_least() { [ "$(figure "$1")" -ge "$2" ]; }

serve p
job --rw=write --do_verify=0
run "$FOREBAY" pool sync p
for _ in 1 2 3; do reads; done
await 10 "blocks are put on the cache device" at_least used_bytes $((30 << 20))
all=$((48 << 8))
# from_device PARTS: one round reads less than a part of the blocks from the main store. A machine that is busy may
# make the device too slow for a while, so there are several tries.
from_device() {
    local before after
    for _ in {1..15}; do
        before=$(main_reads)
        reads
        after=$(main_reads)
        [ $((after - before)) -ge $((all / $1)) ] || return 0
        sleep 1
    done
    fail "$((after - before)) of $all reads went to the main store"
}
from_device 5
hits=$(figure hits)
[ "$hits" -ge $((all / 2)) ] || fail "$hits blocks came from the cache device"

say "kill -9"
kill_server
serve p
await 30 "the blocks are found again" at_least loaded 7000
found=$(figure loaded)
from_device 3

say "overwritten, then written over while the server is down"
job --rw=randwrite --do_verify=0
run "$FOREBAY" pool sync p
reads
stop_server
python3 - "$DIR/k0" <<'END'
import os, sys
with open(sys.argv[1], "r+b") as device:
    for at in range(1 << 20, 64 << 20, 1 << 20):
        device.seek(at)
        device.write(os.urandom(512 << 10))
END
serve p
for _ in 1 2 3; do reads; done
"$FOREBAY" pool list --json | jq -e '.pools[0].health == "ONLINE"' >"$DIR/.out" || fail "the pool's health suffers"

say "deleted, and another pool's"
stop_server
mv "$DIR/k0" "$DIR/k0.away"
serve p
state UNAVAIL || fail "a missing device is $(line)"
reads
mv "$DIR/k0.away" "$DIR/k0"
await 30 "the device is taken when it is back" state ONLINE
reads
refuse 'member of\|belongs to' "$FOREBAY" pool create q "$DIR/k0"
run "$FOREBAY" pool offline p "$DIR/k0"
state OFFLINE || fail "taken offline, it is $(line)"
reads
run "$FOREBAY" pool online p "$DIR/k0"
await 30 "the device is online" state ONLINE
run "$FOREBAY" pool remove p "$DIR/k0"
run "$FOREBAY" pool create q "$DIR/k0"
run "$FOREBAY" pool destroy -f q
reads

say "a device that hangs"
mkdir -p "$RUN/bad"
files 128M bad.img
nbdkit -f -U "$RUN/k" file "$DIR/bad.img" >"$DIR/below.log" 2>&1 &
BELOW=$!
disown $BELOW
undo "kill -CONT $BELOW; kill -9 $BELOW"
await 10 "nbdkit listens" test -S "$RUN/k"
nbdfuse "$RUN/bad/" "nbd+unix:///?socket=$RUN/k" >"$DIR/nbdfuse.log" 2>&1 &
FUSE=$!
disown $FUSE
undo "kill -CONT $BELOW; fusermount3 -uz '$RUN/bad'; kill -9 $FUSE"
await 10 "nbdfuse shows the device" test -e "$RUN/bad/nbd"
run "$FOREBAY" pool add p cache "$RUN/bad/nbd"
for _ in 1 2 3; do reads; done
await 10 "it has blocks" at_least used_bytes $((20 << 20))
kill -STOP $BELOW
reads
await 30 "the device is given up" state FAULTED
reads
kill -CONT $BELOW
run "$FOREBAY" pool online p "$RUN/bad/nbd"
await 30 "the device is online again" state ONLINE
reads
scrub_clean p
stop_server
alive_after=$(grep -c 'panicked at' "$DIR"/serve.*.log | awk -F: '{ sum += $2 } END { print sum }')
[ "$alive_after" = 0 ] || fail "a server panicked"
pass "$hits of $all blocks from the device; $found found again after kill -9"
