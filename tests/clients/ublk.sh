#!/usr/bin/env bash
# Volumes as block devices by the kernel's ublk driver, in a guest: file systems over servers that are killed and
# replaced, fio with verification, read-only, discard, and forebay detach with and without a server.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/guest.lib.sh"
need mke2fs e2fsck fio
begin
MODULES+=(ublk_drv)
guest_main <<'END_OF_MAIN'
run forebay pool create -f -o txg_timeout=1 p raidz1 /dev/vda /dev/vdb /dev/vdc log /dev/vdd
run forebay volume create -V 96M p/v
run forebay volume create -V 32M p/w
start

# Loaded, so that it is the way that is taken.
D=$(forebay attach --connections 3 p/v) || fail "no device: $(forebay attach p/v 2>&1)"
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
# Three of the kernel's queues, or as many as it has processors if that is less.
[ "$(ls /sys/block/${D#/dev/}/mq | wc -l)" = 2 ] || fail "queues: $(ls /sys/block/${D#/dev/}/mq)"
ok "attached as $D, once, with a queue for each processor, and by NBD when that is asked for"

# A file system, and servers that die under it.
run /bin/mke2fs -q -F -t ext4 $D
run mount -t ext4 $D /mnt
refused "is mounted at /mnt" forebay detach p/v
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
as_synced $D

verified $D 4k-256k

# The size, while it is attached and mounted: from Linux 6.16 on.
run /bin/mke2fs -q -F -t ext4 $D
run mount -t ext4 $D /mnt
run forebay volume resize -V 128M p/v
case $(uname -r) in 6.[0-9].* | 6.1[0-5].*)
    until_so 60 "the server says that the size cannot follow" grep -q "p/v: $D keeps its size until" /tmp/serve.log
    has_sectors $D $((96 * 2048)) || fail "$D has $(attribute $D size) sectors"
    run umount /mnt
    run forebay detach $D
    D=$(forebay attach p/v) || fail "no device with the new size"
    has_sectors $D $((128 * 2048)) || fail "$D has $(attribute $D size) sectors, attached again"
    ok "a kernel that cannot change sizes has the new one when it attaches again"
    ;;
*)
    until_so 60 "the device follows its volume" has_sectors $D $((128 * 2048))
    run umount /mnt
    ok "the size follows while the device is mounted"
    ;;
esac
dd if=/dev/urandom of=$D bs=64k seek=2040 count=8 conv=fsync 2>/tmp/dd.log || fail "the new end: $(cat /tmp/dd.log)"

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
# The answer comes when the devices are closed.
run forebay pool import -d /dev/vda -d /dev/vdb -d /dev/vdc -d /dev/vdd p
kill -INT $server
ended $server
start

# A server that ends while its pool waits for room leaves the requests that wait to the next one.
mkdir /small
run mount -t tmpfs -o size=100M none /small
run truncate -s 96M /small/q
kill -INT $server
ended $server
run forebay pool create -o txg_timeout=1 q /small/q
for volume in u n; do run forebay volume create -s -V 16M q/$volume; done
POOLS="p q"
start
U=$(forebay attach q/u) || fail "no device"
N=$(forebay attach --driver nbd q/n) || fail "no device by NBD"
dd if=/dev/zero of=/small/rest bs=64k 2>/dev/null
dd if=/dev/urandom of=/tmp/random bs=1M count=8 2>/dev/null
writers=
for device in $U $N; do
    dd if=/tmp/random of=$device bs=64k oflag=direct 2>/tmp/dd.${device##*/} &
    writers="$writers $!"
done
suspended() { [ "$(forebay pool list -H -o health q)" = SUSPENDED ]; }
until_so 60 "the pool waits for room" suspended
kill -INT $server
ended $server
for writer in $writers; do kill -0 $writer || fail "a write failed: $(cat /tmp/dd.*)"; done
rm /small/rest
start
for writer in $writers; do wait $writer || fail "a write failed: $(cat /tmp/dd.*)"; done
for device in $U $N; do
    dd if=$device bs=1M count=8 iflag=direct 2>/dev/null | cmp - /tmp/random || fail "$device holds something else"
    run forebay detach $device
done
run forebay pool destroy q
POOLS=p
ok "a server that ends beside a full file system leaves requests to the next one"

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
well
kill -INT $server
ended $server
echo "guest: all is well"
END_OF_MAIN
cp "$FOREBAY" "$DIR/forebay"
# guest PACKAGE [SUITE]: the same in a guest with this kernel.
guest() {
    files 256M d0 d1 d2
    files 96M l0
    make_guest "$DIR/forebay" "$(command -v mke2fs)" "$(command -v e2fsck)" "$(command -v fio)" "$(command -v blkdiscard)"
    guest_tells d0 d1 d2 l0
    rm "$DIR"/d? "$DIR"/l?
}
# Debian 13's kernel, and a newer one, which can change sizes.
need_guest linux-image-6.12-cloud-amd64
guest
if has_kernel linux-image-cloud-amd64 trixie-backports; then
    guest
else
    say "without a newer kernel: $(tail -n 1 "$DIR/.out")"
fi
pass "attached by ublk, killed, replaced and detached"
