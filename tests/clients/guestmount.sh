#!/usr/bin/env bash
# A Linux kernel's own NBD client: a guest mounts ext4 from a volume, its server is killed, and again:
# every file that the guest saw synced is there, and fsck is clean. Then the guest's power fails too.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/guest.lib.sh"
need python3 nbd-client mke2fs e2fsck debugfs nbdcopy
begin
need_guest
files 256M d0 d1 d2
files 64M l0 l1
run "$FOREBAY" pool create -o txg_timeout=1 p raidz1 "$DIR"/d{0,1,2} log mirror "$DIR"/l{0,1}
run "$FOREBAY" volume create -V 64M p/v
truncate -s 64M fs
run mke2fs -q -F -t ext4 fs
PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
serve p --listen "tcp:127.0.0.1:$PORT"
run nbdcopy --flush fs "$(uri p/v)"
cat >"$DIR/main" <<'END'
port=$(tr ' ' '\n' </proc/cmdline | sed -n 's/^port=//p')
round=$(tr ' ' '\n' </proc/cmdline | sed -n 's/^round=//p')
nbd-client 10.0.2.2 $port /dev/nbd0 -N p/v || exit
mount -t ext4 /dev/nbd0 /mnt || exit
echo "guest: mounted"
n=0
while true; do
    n=$((n + 1))
    f=r$round.$n
    # The name says what must be in it. It is synced before the host is told.
    yes "$f" | head -n $((n * 37 % 3000 + 1)) | dd of=/mnt/$f bs=64k conv=fsync 2>/dev/null || break
    echo "guest: synced $f $((n * 37 % 3000 + 1))"
done
echo "guest: cannot write any more"
END
: >"$DIR/console"
make_guest "$(command -v nbd-client)"
eval "set -- $(guest_command)"
COMMAND=("$@" -netdev user,id=n -device virtio-net-pci,netdev=n)
synced() { grep -c 'guest: synced' "$DIR/console"; }
enough() { [ "$(synced)" -ge "$1" ]; }
total=0
for round in 1 2 3; do
    : >"$DIR/console"
    "${COMMAND[@]/panic=-1/panic=-1 port=$PORT round=$round}" >"$DIR/qemu.out" 2>&1 &
    GUEST_PID=$!
    disown $GUEST_PID
    undo "kill -9 $GUEST_PID"
    await 90 "the guest mounts the volume: $DIR/console" grep -q 'guest: mounted' "$DIR/console"
    await 60 "the guest syncs files" enough "$(longer 25 200)"
    alive
    case $round in
    # The server dies under the mount; or the guest does; or both at once.
    1)
        kill_server
        # It may see that its disk is gone, or hang; either is well.
        for _ in $(seq 50); do
            grep -q 'cannot write any more' "$DIR/console" && break
            sleep 0.2
        done
        ;;
    2) kill -9 $GUEST_PID ;;
    3) kill_server && kill -9 $GUEST_PID ;;
    esac
    kill -9 $GUEST_PID 2>/dev/null
    ended $GUEST_PID "the guest, killed,"
    serving || serve p --listen "tcp:127.0.0.1:$PORT"
    run nbdcopy "$(uri p/v)" fs
    # The journal is replayed as a mount would; then there must be nothing to mend.
    e2fsck -fy fs >"$DIR/fsck.out" 2>&1
    [ $? -le 1 ] || fail "round $round: $(cat "$DIR/fsck.out")"
    e2fsck -fn fs >"$DIR/fsck.out" 2>&1 || fail "round $round, after the journal: $(cat "$DIR/fsck.out")"
    grep -o 'guest: synced r[0-9.]* [0-9]*' "$DIR/console" >"$DIR/names"
    mkdir -p out && rm -rf out/*
    debugfs -R "rdump / out" fs >"$DIR/.out" 2>&1
    while read -r _ _ name lines; do
        [ "$(yes "$name" | head -n "$lines" | sha256sum)" = "$(sha256sum <"out/$name" 2>/dev/null)" ] ||
            fail "round $round: $name was synced, and is not what was written: $(ls -l "out/$name" 2>&1)"
        total=$((total + 1))
    done <"$DIR/names"
    # As a mount would leave it, for the next round.
    run nbdcopy --flush fs "$(uri p/v)"
done
scrub_clean p
stop_server
pass "$total synced files over three deaths"
