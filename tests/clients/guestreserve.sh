#!/usr/bin/env bash
# Two machines reach the same disks, each in its own way (a guest with Linux's SCSI target and two iSCSI
# initiators). The disks are reserved for the owner of the pool. When that owner stands still and is replaced, the
# disks refuse the writes that its kernel still holds, and it stops.
# With DISKS=nvme the disks are those of Linux's NVMe target; it needs a kernel from 6.13 on: GUEST_KERNEL
# is a folder with the unpacked linux-binary and linux-modules packages of Debian's backports.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/guest.lib.sh"
need nbd-client
begin
need_guest linux-image-amd64
# The initiator, which logs in and leaves the rest to the kernel.
need_iscsi() {
    local from=${CARGO_TARGET_DIR:-$ROOT/target}/guest-open-iscsi
    if [ ! -x "$from/sbin/iscsistart" ]; then
        rm -rf "$from.new"
        mkdir -p "$from.new"
        (cd "$from.new" && apt-get -o APT::Sandbox::User=root download open-iscsi libopeniscsiusr &&
            for package in *.deb; do dpkg-deb -x "$package" . || exit; done && rm -f ./*.deb &&
            rm -rf "$from" && mv "$from.new" "$from") >"$DIR/.out" 2>&1 ||
            skip "open-iscsi cannot be fetched: $(tail -n 1 "$DIR/.out")"
    fi
    PROGRAMS+=("$from/sbin/iscsistart")
    LIBRARIES=$(dirname "$(find "$from" -name 'libopeniscsiusr.so*' | head -n 1)")
}
PROGRAMS=("$(command -v nbd-client)")
LIBRARIES=
case ${DISKS:=scsi} in
scsi)
    MODULES=(configfs crct10dif_common crc-t10dif crc64 crc64-rocksoft t10-pi scsi_common scsi_mod sd_mod
        target_core_mod crc32c_generic libcrc32c iscsi_target_mod scsi_transport_iscsi libiscsi libiscsi_tcp
        iscsi_tcp nbd)
    need_iscsi
    ;;
nvme)
    # Without multipath, which would make one disk of both ways.
    MODULES=(configfs nvme-keyring nvme-auth "nvme-core multipath=N" nvme-fabrics nvmet nvme-loop nbd) ;;
*) fail "DISKS is scsi or nvme" ;;
esac
echo "iscsi_libraries=$LIBRARIES" >"$DIR/main"
cat >>"$DIR/main" <<'END_OF_MAIN'
fail() {
    echo "guest: FAIL $*"
    dmesg | tail -n 5
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

# Three disks in memory, and two ways to them: the names of the disks in $A and in $B.
mount -t configfs none /sys/kernel/config || fail "no configfs"
disks() { ls -d /sys/block/$1 2>/dev/null | wc -l; }
six() { [ "$(disks "$1")" = 6 ]; }
# Linux's SCSI target over iSCSI, with a target port and an initiator for each machine. (Over its loopback fabric
# PREEMPT AND ABORT waits for itself, in Linux 6.1 at least.)
scsi() {
    mkdir -p /var/target/pr
    core=/sys/kernel/config/target/core/rd_mcp_0
    for disk in 0:24576 1:24576 2:16384; do
        number=${disk%:*}
        mkdir -p $core/d$number || fail "no SCSI target"
        echo "rd_pages=${disk#*:}" >$core/d$number/control
        echo "forebay-$number" >$core/d$number/wwn/vpd_unit_serial
        echo 1 >$core/d$number/enable || fail "no disk $number"
    done
    mkdir -p /sys/kernel/config/target/iscsi || fail "no iSCSI target"
    for host in a b; do
        target=iqn.2026-01.test:port.$host
        tpg=/sys/kernel/config/target/iscsi/$target/tpgt_1
        acl=$tpg/acls/iqn.2026-01.test:$host
        mkdir -p $tpg && mkdir $acl || fail "no iSCSI target"
        for number in 0 1 2; do
            mkdir $tpg/lun/lun_$number $acl/lun_$number || fail "no LUN"
            ln -s $core/d$number $tpg/lun/lun_$number/port || fail "no LUN"
            ln -s $tpg/lun/lun_$number $acl/lun_$number/port || fail "no mapped LUN"
        done
        mkdir $tpg/np/127.0.0.1:3260 || fail "no portal"
        echo 0 >$tpg/attrib/authentication
        echo 1 >$tpg/enable || fail "the target is not enabled"
        LD_LIBRARY_PATH=$iscsi_libraries iscsistart -i iqn.2026-01.test:$host -t $target -g 1 \
            -a 127.0.0.1 >/tmp/iscsi.log 2>&1 || fail "initiator $host: $(cat /tmp/iscsi.log)"
    done
    until_so 30 "six disks" six 'sd?'
    # By host, channel, target, LUN: the first three are those of the first initiator.
    set -- $(for d in /sys/block/sd?; do echo "$(basename "$(readlink $d/device)") ${d##*/}"; done |
        sort | awk '{ print "/dev/" $2 }')
    A="$1 $2 $3" B="$4 $5 $6"
}
# Linux's NVMe target, with a controller of its loopback transport for each machine. It has reservations
# since Linux 6.13.
nvme() {
    nvmet=/sys/kernel/config/nvmet
    mkdir $nvmet/subsystems/forebay $nvmet/ports/1 || fail "no NVMe target"
    echo 1 >$nvmet/subsystems/forebay/attr_allow_any_host
    number=1
    for size in 96 96 64; do
        truncate -s ${size}M /tmp/n$number
        space=$nvmet/subsystems/forebay/namespaces/$number
        mkdir $space
        echo -n /tmp/n$number >$space/device_path
        echo 1 >$space/buffered_io
        echo 1 >$space/resv_enable || fail "this NVMe target has no reservations"
        echo 1 >$space/enable || fail "no namespace $number"
        number=$((number + 1))
    done
    echo loop >$nvmet/ports/1/addr_trtype
    ln -s $nvmet/subsystems/forebay $nvmet/ports/1/subsystems/forebay || fail "no NVMe port"
    for host in 1 2; do
        echo "transport=loop,nqn=forebay,hostnqn=nqn.2014-08.org.nvmexpress:host$host,hostid=00000000-0000-4000-8000-00000000000$host" \
            >/dev/nvme-fabrics || fail "no NVMe host"
        until_so 30 "three namespaces" [ -e /sys/block/nvme$((host - 1))n3 ]
    done
    six 'nvme?n?' || fail "namespaces: $(ls /sys/block)"
    A="/dev/nvme0n1 /dev/nvme0n2 /dev/nvme0n3" B="/dev/nvme1n1 /dev/nvme1n2 /dev/nvme1n3"
}
kind=$(tr ' ' '\n' </proc/cmdline | sed -n 's/^disks=//p')
$kind
set -- $A $B
A0=$1 B0=$4

echo 0123456789abcdef0123456789abcdef >/id.a
echo fedcba9876543210fedcba9876543210 >/id.b
[ -e /etc/machine-id ] || touch /etc/machine-id
# on MACHINE COMMAND...: in place of this shell.
on() {
    machine=$1
    shift
    FOREBAY_STATE_DIR=/run/$machine exec unshare -m sh -c \
        'mount --bind "$0" /etc/machine-id && exec "$@"' /id.$machine "$@"
}
run() { (on "$@") >/tmp/run.log 2>&1 || fail "$*: $(cat /tmp/run.log)"; }
refused() {
    why=$1
    shift
    (on "$@") >/tmp/run.log 2>&1 && fail "was accepted: $*"
    grep -q -- "$why" /tmp/run.log || fail "refused for another reason: $*: $(cat /tmp/run.log)"
}
# start MACHINE PORT; the process is $server.
start() {
    : >/tmp/serve.$1.log
    (on $1 forebay serve p --listen tcp:127.0.0.1:$2) >/tmp/serve.$1.log 2>&1 &
    server=$!
    until_so 120 "machine $1 serves" grep -q 'ready: ' /tmp/serve.$1.log
}
# How many devices of machine $1's pool are reserved.
reserved() { (on $1 forebay pool status --json p) | grep -c '"protection": *"reservation"'; }
three_reserved() { [ "$(reserved $1)" = 3 ]; }
# raw DISK: a write past Forebay, of what is in the block already.
raw() {
    dd if=$1 of=/tmp/same bs=4k skip=16383 count=1 2>/tmp/raw.log || fail "$1 cannot be read"
    dd if=/tmp/same of=$1 bs=4k seek=16383 count=1 conv=fsync,notrunc 2>/tmp/raw.log
}

run a forebay pool create -f -o txg_timeout=1 p mirror $1 $2 log $3
run a forebay volume create -V 8M p/v
start a 10809
first=$server
three_reserved a || fail "the status shows no reservation: $(on a forebay pool status --json p)"
(on a forebay pool status p) | sed 's/^/guest: /'
raw $B0 && fail "the other port can write"
ok "reserved: the other port reads and cannot write: $(cat /tmp/raw.log | tail -n 1)"

kill -9 $first
start a 10809
first=$server
three_reserved a || fail "no reservation after the kill"
raw $B0 && fail "the other port can write after the kill"
ok "an owner that was killed has its reservations back"

nbd-client 127.0.0.1 10809 /dev/nbd0 -N p/v >/tmp/nbd.log 2>&1 || fail "no client"
yes forebay | head -c 4096 >/tmp/block
# write DEVICE FIRST LAST LEDGER: blocks that say their number, each durable before it counts.
write() {
    n=$2
    while [ $n -le $3 ]; do
        (printf '%08d' $n; tail -c +9 /tmp/block) >/tmp/block.$4
        dd if=/tmp/block.$4 of=$1 bs=4k seek=$n count=1 conv=fsync,notrunc 2>/dev/null || break
        echo $n >>/tmp/$4
        n=$((n + 1))
    done
}
# holds DEVICE LEDGER: each block of the ledger is on the device.
holds() {
    while read -r n; do
        [ "$(dd if=$1 bs=4k skip=$n count=1 2>/dev/null | head -c 8)" = "$(printf '%08d' $n)" ] ||
            fail "block $n of $2 is not there"
    done </tmp/$2
}
written() { [ "$(wc -l </tmp/$2)" -ge $1 ]; }
touch /tmp/old /tmp/new
write /dev/nbd0 0 999 old &
until_so 60 "twenty blocks" written 20 old

refused 'in use there' b forebay pool import -f -d $4 -d $5 -d $6 p
kill -0 $first || fail "the owner is gone"
three_reserved a || fail "the refused import took a reservation"
ok "an owner that runs keeps its pool"

# From here on the first machine's kernel holds its writes.
mount -t cgroup2 none /sys/fs/cgroup || fail "no control groups"
echo +io >/sys/fs/cgroup/cgroup.subtree_control || fail "no limits of I/O"
mkdir /sys/fs/cgroup/a
echo $first >/sys/fs/cgroup/a/cgroup.procs
limit() {
    for disk in $A; do
        echo "$(cat /sys/block/${disk#/dev/}/dev) wbps=$1" >/sys/fs/cgroup/a/io.max || fail "no limit"
    done
}
limit 64
# The limit lets a first write pass.
sleep 3
kill -STOP $first
answered=$(wc -l </tmp/old)
refused '-f' b forebay pool import -d $4 -d $5 -d $6 p
run b forebay pool import -f -d $4 -d $5 -d $6 p
start b 10810
second=$server
three_reserved b || fail "the new owner has no reservation"
nbd-client 127.0.0.1 10810 /dev/nbd1 -N p/v >/tmp/nbd.log 2>&1 || fail "no client"
holds /dev/nbd1 old
write /dev/nbd1 1000 1999 new &
until_so 60 "twenty blocks of the new owner" written 20 new
raw $A0 && fail "the old owner's port can write"
ok "taken over: all $answered blocks are there, and the old port cannot write: $(tail -n 1 /tmp/raw.log)"

conflicts() { dmesg | grep -c 'reservation conflict'; }
before=$(conflicts)
limit max
more_conflicts() { [ "$(conflicts)" -gt "$before" ]; }
until_so 30 "the disk refuses the writes that were held" more_conflicts
kill -CONT $first
suspended() { (on a forebay pool status p) | grep -q 'SUSPENDED'; }
until_so 60 "the old owner stops" suspended
(on a forebay pool status p) >/tmp/status.log 2>&1
grep -q 'another process has imported the pool' /tmp/status.log ||
    fail "stopped for another reason: $(cat /tmp/status.log)"
grep '/dev/' /tmp/status.log | grep -q 'FAULTED\|DEGRADED\|UNAVAIL\|reserved' &&
    fail "blames a device: $(cat /tmp/status.log)"
[ "$(wc -l </tmp/old)" = "$answered" ] || fail "the old owner answered again"
ok "the disk refused $(($(conflicts) - before)) held writes, and the old owner is fenced"

until_so 60 "more blocks of the new owner" written 60 new
kill %% 2>/dev/null
holds /dev/nbd1 new
holds /dev/nbd1 old
run b forebay pool scrub -w p
(on b forebay pool status p) >/tmp/status.log
grep -q 'No known data errors' /tmp/status.log || fail "the new owner: $(cat /tmp/status.log)"
grep -q 'repaired 0B' /tmp/status.log || fail "there was something to repair: $(cat /tmp/status.log)"
kill -9 $first
nbd-client -d /dev/nbd1 >/dev/null 2>&1
kill -INT $second
until_so 60 "the new owner ends" sh -c "! kill -0 $second"
raw $A0 && fail "closed, and not reserved any more"
run b forebay pool export p
raw $A0 || fail "still reserved after the export: $(cat /tmp/raw.log)"
start a 10809
three_reserved a || fail "no reservation at the end"
ok "exported: the old machine has the pool again"
echo "guest: all is well"
END_OF_MAIN
: >"$DIR/console"
cp "$FOREBAY" "$DIR/forebay"
LD_LIBRARY_PATH=$LIBRARIES make_guest "$DIR/forebay" "${PROGRAMS[@]}"
eval "set -- $(guest_command)"
say "$(basename "$KERNEL"), $DISKS"
"${@/panic=-1/panic=-1 disks=$DISKS}" >"$DIR/qemu.out" 2>&1 &
GUEST_PID=$!
disown $GUEST_PID
undo "kill -9 $GUEST_PID"
over() { ! lives $GUEST_PID || grep -q 'guest: FAIL\|guest: all is well' "$DIR/console"; }
await 200 "the guest ends: $DIR/console" over
sed -n 's/^guest: //p' "$DIR/console" | tr -d '\r' | while read -r line; do say "$line"; done
grep -q 'guest: all is well' "$DIR/console" || fail "$(tail -n 30 "$DIR/console"; cat "$DIR/qemu.out")"
pass "the disks refused the writes of an owner that was replaced"
