#!/usr/bin/env bash
# A virtual machine's disk by vhost-user-blk (QEMU): a guest writes ext4 while its server is killed and
# another takes over; it reads back what it wrote, sees a resize, and its file system is clean.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/guest.lib.sh"
need mkfs.ext4 fsck.ext4
begin
need_guest
files 256M d0 d1 d2
files 64M l0 l1
run "$FOREBAY" pool create -o txg_timeout=1 p raidz1 "$DIR"/d{0,1,2} log mirror "$DIR"/l{0,1}
run "$FOREBAY" volume create -V 64M p/v
mkdir "$RUN/vm"
serve p --vhost-user "$RUN/vm"
cat >"$DIR/main" <<'END'
d=/sys/block/vda
echo "guest: size $(cat $d/size) queues $(ls $d/mq | wc -l) serial $(cat $d/serial)"
# The bits of VIRTIO_F_INDIRECT_DESC, VIRTIO_F_EVENT_IDX, VIRTIO_F_VERSION_1 and VIRTIO_F_RING_PACKED.
echo "guest: features $(cut -c 29,30,33,35 </sys/block/vda/device/features)"
echo "guest: discard $(cat $d/queue/discard_max_bytes) zeroes $(cat $d/queue/write_zeroes_max_bytes)"
# Every write is durable when it completes: then the guest loses nothing with its server.
echo "write through" >$d/cache_type
echo "guest: cache $(cat $d/cache_type)"
mkfs.ext4 -q -F /dev/vda || exit
mount -t ext4 /dev/vda /mnt || exit
echo "guest: mounted"
n=0
while [ $n -lt 100 ]; do
    n=$((n + 1))
    yes "f$n" | head -n $((n * 37 % 3000 + 1)) | dd of=/mnt/f$n bs=16k conv=fsync 2>/dev/null || break
    echo "guest: synced f$n $((n * 37 % 3000 + 1))"
done
echo "guest: waits for the new size"
for _ in $(seq 300); do [ "$(cat $d/size)" = 163840 ] && break || sleep 0.1; done
echo "guest: size $(cat $d/size)"
umount /mnt
echo 3 >/proc/sys/vm/drop_caches
mount -t ext4 -o ro /dev/vda /mnt || exit
for f in $(seq $n); do
    [ "$(yes f$f | head -n $((f * 37 % 3000 + 1)) | sha256sum)" = "$(sha256sum </mnt/f$f)" ] || echo "guest: f$f differs"
done
umount /mnt
fsck.ext4 -fn /dev/vda >/tmp/fsck 2>&1 && echo "guest: clean after $n files" || cat /tmp/fsck
blkdiscard /dev/vda && echo "guest: discarded"
dd if=/dev/vda bs=1M 2>/dev/null | cmp - /dev/zero 2>&1 | sed 's/^/guest: zeros: /'
END
: >"$DIR/console"
make_guest "$(command -v mkfs.ext4)" "$(command -v fsck.ext4)"
eval "set -- $(guest_command)"
"$@" -machine pc,memory-backend=ram -object memory-backend-memfd,id=ram,size=1024M,share=on \
    -chardev "socket,id=disk,path=$RUN/vm/p/v.sock,reconnect=1" \
    -device vhost-user-blk-pci,chardev=disk,num-queues=2,config-wce=on >"$DIR/qemu.out" 2>&1 &
GUEST_PID=$!
disown $GUEST_PID
undo "kill -9 $GUEST_PID"
synced() { [ "$(grep -c 'guest: synced' "$DIR/console")" -ge "$1" ]; }
await 60 "the guest mounts its disk: $DIR/console" grep -q 'guest: mounted' "$DIR/console"
await 60 "the guest syncs files" synced 5
kill_server
seen=$(grep -c 'guest: synced' "$DIR/console")
serve p --vhost-user "$RUN/vm"
await 60 "the guest goes on with the new server" synced $((seen + 5))
for _ in 1 2 3 4; do
    seen=$(grep -c 'guest: synced' "$DIR/console")
    stop_server
    serve p --vhost-user "$RUN/vm"
    await 60 "the guest goes on after a restart" synced $((seen < 95 ? seen + 5 : 100))
done
await 60 "the guest waits for a resize: $(tail -n 3 "$DIR/console")" grep -q 'guest: waits' "$DIR/console"
run "$FOREBAY" volume resize -V 80M p/v
await 90 "the guest ends: $(tail -n 3 "$DIR/console")" grep -q 'guest: the end' "$DIR/console"
said() { grep -q "guest: $1" "$DIR/console" || fail "the guest did not say '$1': $(cat "$DIR/console" "$DIR/qemu.out")"; }
said 'size 131072 queues 2 serial p-v'
# Linux puts every request of a block device into an indirect table when it may.
said 'features 1110'
said 'cache write through'
said 'size 163840'
said 'clean after'
said 'discarded'
said 'zeros: cmp: EOF on -'
! grep -q differs "$DIR/console" || fail "$(grep differs "$DIR/console")"
ended $GUEST_PID "the guest"
scrub_clean p
stop_server
pass "$(grep -o 'clean after .*' "$DIR/console") and a killed server"
