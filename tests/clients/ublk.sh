#!/usr/bin/env bash
# Volumes as block devices by the kernel's ublk driver, in a guest: file systems over servers that are killed and
# replaced, fio with verification, read-only, discard, and forebay detach with and without a server.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/guest.lib.sh"
need mke2fs e2fsck fio
begin
# The newest kernel that this Debian has: ublk is as it must be from 6.4 on.
need_guest linux-image-6.12-cloud-amd64
MODULES+=(ublk_drv)
files 256M d0 d1 d2
files 96M l0
cat >"$DIR/main" <<'END_OF_MAIN'
export FOREBAY_STATE_DIR=/run/forebay
fail() {
    echo "guest: FAIL $*"
    dmesg | tail -n 8
    tail -n 5 /tmp/*.log
    poweroff -f
}
ok() { echo "guest: ok $*"; }
# until_so SECONDS WHAT COMMAND...
until_so() {
    n=$(($1 * 5)) what=$2
    shift 2
    while [ $n -gt 0 ]; do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
        n=$((n - 1))
    done
    fail "waited in vain: $what"
}
run() { "$@" >/tmp/run.log 2>&1 || fail "$*: $(cat /tmp/run.log)"; }
refused() {
    why=$1
    shift
    "$@" >/tmp/run.log 2>&1 && fail "was accepted: $*"
    grep -q -- "$why" /tmp/run.log || fail "refused for another reason: $*: $(cat /tmp/run.log)"
}
start() {
    : >/tmp/serve.log
    forebay serve p --listen tcp:127.0.0.1:10809 >/tmp/serve.log 2>&1 &
    server=$!
    until_so 120 "the server serves" grep -q 'ready: ' /tmp/serve.log
}
killed() {
    kill -9 $server
    until_so 60 "the server is gone" sh -c "! kill -0 $server"
}
ended() { until_so 120 "process $1 ends" sh -c "! kill -0 $1"; }
listed() { forebay volume list -H -o attached p/$1; }
is_listed() { [ "$(listed $1)" = "$2" ]; }
attribute() { cat /sys/block/${1#/dev/}/$2; }

run forebay pool create -f -o txg_timeout=1 p raidz1 /dev/vda /dev/vdb /dev/vdc log /dev/vdd
run forebay volume create -V 96M p/v
run forebay volume create -V 32M p/w
start

# Loaded, so that it is the way that is taken.
D=$(forebay attach p/v) || fail "no device: $(forebay attach p/v 2>&1)"
case $D in /dev/ublkb*) ;; *) fail "'$D' is no ublk device" ;; esac
[ -b "$D" ] || fail "'$D' is no block device"
[ "$(attribute $D size)" = $((96 * 2048)) ] || fail "$D has $(attribute $D size) sectors"
grep -q "write through" /sys/block/${D#/dev/}/queue/write_cache || fail "the kernel knows of a cache"
is_listed v $D && is_listed w - || fail "listed as $(listed v), and $(listed w)"
[ "$(forebay attach p/v)" = $D ] || fail "a second attach makes another device"
refused "attached already, for reading and writing" forebay attach --read-only p/v
refused "'p/v' is attached as $D" forebay volume destroy p/v
refused "'p/v' is attached as $D" forebay pool export p
N=$(forebay attach --driver nbd p/w) || fail "no NBD device"
[ "$N" = /dev/nbd0 ] || fail "by NBD as $N"
run forebay detach $N
ok "attached as $D, once, and by NBD when that is asked for"

# A file system, and servers that die under it.
run /bin/mke2fs -q -F -t ext4 $D
run mount -t ext4 $D /mnt
refused "is mounted at /mnt" forebay detach p/v
write() {
    n=0
    while [ ! -e /tmp/enough ]; do
        n=$((n + 1))
        # The name says what must be in it; ten files at a time are kept.
        yes "$1.$n" | head -n $((n * 37 % 3000 + 1)) | dd of=/mnt/$1.$((n % 10)) bs=64k conv=fsync 2>/dev/null ||
            break
        echo "$1.$n $((n * 37 % 3000 + 1))" >>/tmp/synced
    done
    echo "$1 is over" >>/tmp/synced
}
synced() { [ "$(wc -l </tmp/synced)" -ge $1 ]; }
more() { until_so 200 "files are synced: $1" synced $(($(wc -l </tmp/synced) + 12)); }
: >/tmp/synced
write file &
more "at first"
for round in 1 2 3; do
    killed
    start
    more "after a kill, round $round"
done
ok "three servers were killed under a mounted file system, and the next one took it over"
kill -INT $server
ended $server
grep -q 'p/v is attached: its users wait' /tmp/serve.log || fail "the end says nothing of attached volumes"
grep -q 'stopped: the pools are closed' /tmp/serve.log || fail "no clean end"
start
more "after an orderly end"
ok "a server that ends leaves requests to the next one"
touch /tmp/enough
until_so 120 "the writer ends" grep -q 'is over' /tmp/synced
rm /tmp/enough
total=$(grep -c '^file\.' /tmp/synced)
run umount /mnt
echo 3 >/proc/sys/vm/drop_caches
run /bin/e2fsck -fn $D
run mount -t ext4 -o ro $D /mnt
grep '^file\.' /tmp/synced | tail -n 10 | while read -r name lines; do
    [ "$(yes "$name" | head -n "$lines" | sha256sum)" = "$(sha256sum </mnt/file.$((${name#file.} % 10)))" ] ||
        fail "$name was synced, and is not what was written"
done
run umount /mnt
ok "$total files were synced meanwhile, the last ten are as they were written, and fsck is clean"

# fio writes and reads back, with its server killed in the middle.
fio --name=verify --filename=$D --rw=randwrite --bs=4k-256k --size=24M --io_size=48M --direct=1 --ioengine=libaio \
    --iodepth=16 --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=7 >/tmp/fio.log 2>&1 &
fio=$!
sleep 1
killed
start
wait $fio || fail "fio: $(cat /tmp/fio.log)"
grep -q 'err= 0' /tmp/fio.log || fail "fio: $(cat /tmp/fio.log)"
ok "fio verified what it wrote over a killed server"

# Discarded blocks are zeros, and the pool has their space again.
run dd if=/dev/urandom of=$D bs=1M count=8 oflag=direct
run blkdiscard -o 0 -l 8388608 $D
[ "$(dd if=$D bs=1M count=8 iflag=direct 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] || fail "discarded, and not zeros"
ok "discard"

# Read-only.
R=$(forebay attach --read-only p/w) || fail "no second device"
dd if=/dev/zero of=$R bs=4k count=1 conv=fsync 2>/tmp/dd.log && fail "a read-only device takes writes"
run dd if=$R of=/dev/null bs=64k
run forebay detach $R
is_listed w - || fail "p/w is listed as $(listed w)"
[ -e $R ] && fail "$R is still there"
closed() { ! ls -l /proc/$server/fd | grep -q "ublkc${R#/dev/ublkb} (deleted)"; }
until_so 30 "the server has let go of the device" closed
ok "read-only, and detached"

# The volume goes, and comes back in the same process.
run forebay pool export -f p
dd if=$D of=/dev/null bs=4k count=1 iflag=direct 2>/tmp/dd.log && fail "read without a pool"
run forebay detach -f $D
[ -e $D ] && fail "$D is still there"
until_so 30 "the server has closed its devices" forebay pool import -d /dev/vda -d /dev/vdb -d /dev/vdc -d /dev/vdd p
kill -INT $server
ended $server
start

# Taken away without a server; and with its volume.
D=$(forebay attach p/v) || fail "no device"
killed
run forebay detach -f p/v
[ -e $D ] && fail "$D is still there"
start
D=$(forebay attach p/v) || fail "no device"
run forebay volume destroy -f p/v
until_so 30 "the device goes with its volume" [ ! -e $D ]
ok "taken away without a server, and with its volume"
run forebay pool scrub -w p
forebay pool status p >/tmp/status.log
grep -q 'No known data errors' /tmp/status.log || fail "$(cat /tmp/status.log)"
grep -q 'panicked' /tmp/serve.log && fail "the server panicked"
kill -INT $server
ended $server
echo "guest: all is well"
END_OF_MAIN
: >"$DIR/console"
cp "$FOREBAY" "$DIR/forebay"
make_guest "$DIR/forebay" "$(command -v mke2fs)" "$(command -v e2fsck)" "$(command -v fio)" "$(command -v blkdiscard)"
eval "set -- $(guest_command)"
say "$(basename "$KERNEL")"
for file in d0 d1 d2 l0; do
    set -- "$@" -drive "file=$DIR/$file,if=none,id=$file,format=raw,cache=writeback" \
        -device "virtio-blk-pci,drive=$file"
done
"$@" >"$DIR/qemu.out" 2>&1 &
GUEST_PID=$!
disown $GUEST_PID
undo "kill -9 $GUEST_PID"
over() { ! lives $GUEST_PID || grep -q 'guest: FAIL\|guest: all is well' "$DIR/console"; }
await 300 "the guest ends: $DIR/console" over
sed -n 's/^guest: ok //p' "$DIR/console" | tr -d '\r' | while read -r line; do say "$line"; done
grep -q 'guest: all is well' "$DIR/console" || fail "$(tail -n 40 "$DIR/console"; cat "$DIR/qemu.out")"
pass "attached by ublk, killed, replaced and detached"
