#!/usr/bin/env bash
# Volumes as block devices of a Linux kernel, in a guest: forebay attach, file systems on the device, servers that
# are killed, stopped and replaced under it, sizes that change, refusals, and forebay detach.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/guest.lib.sh"
need mke2fs e2fsck fio setpriv
begin
need_guest
files 256M d0 d1 d2
files 96M l0
guest_main <<'END_OF_MAIN'
sectors() { attribute $1 size; }
# Root without the right to configure devices.
NO_RIGHTS="/bin/setpriv --bounding-set -sys_admin --inh-caps -sys_admin"

run forebay pool create -f -o txg_timeout=1 p raidz1 /dev/vda /dev/vdb /dev/vdc log /dev/vdd
run forebay volume create -V 96M p/v
run forebay volume create -V 32M p/w

# What is missing is said in one line.
rmmod nbd || fail "the module does not go"
refused "start 'forebay serve p'" forebay attach p/v
start
refused "module nbd) is not loaded; load it" forebay attach p/v
refused "'p/v' is not attached" forebay detach p/v
run insmod /modules/nbd.ko
refused "no volume named 'p/none'" forebay attach p/none
refused "only root" $NO_RIGHTS forebay attach p/v
refused "/dev/vda is no device that a volume is attached as" forebay detach /dev/vda
ok "refused without a server, without the module, without rights"

rm /dev/nbd0
refused "/dev/nbd0 is missing" forebay attach p/v
[ -e /sys/block/nbd0/pid ] && fail "a device without a node is left"
mknod /dev/nbd0 b $(tr ':' ' ' </sys/block/nbd0/dev)

D=$(forebay attach p/v --connections 3 --timeout 3 --dead-timeout 300) || fail "no device"
[ -b "$D" ] || fail "'$D' is no block device"
has_sectors $D $((96 * 2048)) || fail "$D has $(sectors $D) sectors"
is_listed v $D && is_listed w - || fail "listed as $(listed v), and $(listed w)"
forebay volume list --json p/v | grep -q "\"attached\": \"$D\"" || fail "not in the JSON"
grep -q "write through" /sys/block/${D#/dev/}/queue/write_cache || fail "the kernel knows of a cache"
[ "$(forebay attach p/v)" = $D ] || fail "a second attach makes another device"
[ "$(ls /sys/block/nbd*/pid | wc -l)" = 1 ] || fail "there are two devices"
refused "attached already, for reading and writing" forebay attach --read-only p/v
refused "'p/v' is attached as $D" forebay volume destroy p/v
refused "'p/v' is attached as $D" forebay pool export p
ok "attached once as $D, however often it is asked for"

# A file system, and servers that die under it.
run /bin/mke2fs -q -F -t ext4 $D
run mount -t ext4 $D /mnt
refused "is mounted at /mnt" forebay detach p/v
refused "is mounted at /mnt" forebay detach $D
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
start
more "after an orderly end"
ok "a server that ends leaves requests to the next one"

# A server that stands still for longer than the kernel waits: its connections are given up and made again.
kill -STOP $server
sleep 7
kill -CONT $server
more "after a standstill"
ok "a server that stood still goes on"

# A server that may not configure devices says so, and 'attach' does it in its place.
killed
start $NO_RIGHTS
until_so 60 "the server tells that it may not" grep -q "p/v: $D cannot be served: .*only root" /tmp/serve.log
[ "$(forebay attach p/v)" = $D ] || fail "attach gives another device"
more "after attach connected it again"
killed
start
more "with all rights again"
as_synced $D

verified $D 4k-64k

# Size.
run forebay volume resize -V 128M p/v
until_so 60 "the device follows its volume" has_sectors $D $((128 * 2048))
dd if=/dev/urandom of=$D bs=64k seek=2040 count=8 conv=fsync 2>/tmp/dd.log || fail "the new end: $(cat /tmp/dd.log)"
ok "the size follows"

# Read-only.
R=$(forebay attach --read-only p/w) || fail "no second device"
dd if=/dev/zero of=$R bs=4k count=1 conv=fsync 2>/tmp/dd.log && fail "a read-only device takes writes"
run dd if=$R of=/dev/null bs=64k
refused "attached already, read-only" forebay attach p/w
sleep 100 <$R &
holder=$!
refused "process $holder (.*) has it open" forebay detach p/w
kill $holder
ended $holder
run forebay detach p/w
is_listed w - || fail "p/w is listed as $(listed w)"
ok "read-only, refused while it is open, and detached"

# A server that is gone for good.
run forebay detach $D
D=$(forebay attach p/v --connections 2 --timeout 2 --dead-timeout 3) || fail "no device"
killed
dd if=/dev/zero of=$D bs=4k count=1 oflag=direct 2>/tmp/dd.log && fail "written without a server"
grep -q 'error' /tmp/dd.log || fail "dd: $(cat /tmp/dd.log)"
run forebay detach p/v
[ -e /sys/block/${D#/dev/}/pid ] && fail "$D is still there"
start
D=$(forebay attach p/v) || fail "no device"
run dd if=$D of=/dev/null bs=64k count=16
ok "without a server writes fail in the end, and the device can be taken away"

FROM="-d /dev/vda -d /dev/vdb -d /dev/vdc -d /dev/vdd"
# A pool that left and comes back finds no device that still has its old data.
run forebay pool export -f p
refused "'p/v' is still attached as $D" forebay pool import $FROM p
run forebay detach -f $D
run forebay pool import $FROM p
kill -INT $server
ended $server
start
D=$(forebay attach p/v) || fail "no device after the import"

# Destroyed while it is attached; and taken away while it is mounted.
W=$(forebay attach p/w) || fail "no device"
run forebay volume destroy -f p/w
until_so 30 "the device goes with its volume" [ ! -e /sys/block/${W#/dev/}/pid ]
run /bin/mke2fs -q -F -t ext4 $D
run mount -t ext4 $D /mnt
run forebay detach -f $D
dd if=/dev/zero of=/mnt/x bs=4k count=1 conv=fsync 2>/tmp/dd.log && fail "written to a device that is gone"
run umount /mnt
until_so 30 "the device goes with its last user" [ ! -e /sys/block/${D#/dev/}/pid ]
ok "force takes a device from its users"
well
D=$(forebay attach p/v) || fail "no device"
refused "'p/v' is attached as $D" forebay pool destroy p
run forebay pool destroy -f p
until_so 30 "the device goes with its pool" [ ! -e /sys/block/${D#/dev/}/pid ]
kill -INT $server
ended $server
echo "guest: all is well"
END_OF_MAIN
cp "$FOREBAY" "$DIR/forebay"
make_guest "$DIR/forebay" "$(command -v mke2fs)" "$(command -v e2fsck)" "$(command -v fio)" "$(command -v setpriv)"
guest_tells d0 d1 d2 l0
pass "attached, killed, replaced, resized and detached"
