#!/usr/bin/env bash
# The file system that a pool's files lie on is full: writes fail and what was acknowledged can be read;
# once there is room again and the pool was imported anew, it is all there and writes go on.
. "$(dirname "$0")/lib.sh"
need_nbd_shell
need mkfs.ext4
need_root "mounts and loop devices"
[ -e /dev/loop-control ] || skip "there are no loop devices here"
begin
truncate -s 200M disk.img
run mkfs.ext4 -q -F -O ^has_journal disk.img
mkdir "$RUN/small"
mount -o loop disk.img "$RUN/small" 2>.out || skip "mount: $(cat .out)"
undo "umount -l '$RUN/small'"
small=$RUN/small
run dd if=/dev/zero of="$small/ballast" bs=1M count=60 status=none
truncate -s 256M "$small"/d{0,1,2}
truncate -s 64M "$small/l0"
run "$FOREBAY" pool create p raidz1 "$small"/d{0,1,2} log "$small/l0"
run "$FOREBAY" volume create -V 300M p/v
serve p
cat >load.py <<'P'
MB = 1 << 20
def fill(h, first):
    """Writes durable megabytes until one is refused; returns how many were answered."""
    for at in range(first, 300):
        try:
            h.pwrite(bytes([at % 251 + 1, at // 251]) * (MB // 2), at * MB, nbd.CMD_FLAG_FUA)
        except nbd.Error as error:
            assert error.errno in ("EIO", "ENOSPC"), error
            return at
    raise SystemExit("300 MiB went into files that have room for less")
def check(h, end):
    for at in range(end):
        assert h.pread(MB, at * MB) == bytes([at % 251 + 1, at // 251]) * (MB // 2), "MiB %d" % at
P
run nbd_shell -u "$(uri p/v)" -c 'exec(open("load.py").read())' -c '
end = fill(h, 0)
assert end > 20, end
check(h, end)
print(end)'
END=$(tail -n 1 .out)
alive
pool_json status p >status.json || fail "no status: $(cat status.json)"
say "$END MiB answered; the pool is $(grep -o 'SUSPENDED\|DEGRADED' status.json | head -n 1)"
kill_server
rm "$small/ballast"
serve p
run nbd_shell -u "$(uri p/v)" -c 'exec(open("load.py").read())' -c "
check(h, $END)
for at in range($END, $END + 10):
    h.pwrite(bytes([at % 251 + 1, at // 251]) * (MB // 2), at * MB, nbd.CMD_FLAG_FUA)
check(h, $END + 10)"
run "$FOREBAY" pool clear p
run "$FOREBAY" pool wait p
scrub_clean p
stop_server
run umount "$small"
pass "$END MiB before there was no room, all there when there was"
