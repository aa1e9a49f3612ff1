#!/usr/bin/env bash
# The file system that a pool's files lie on is full: the pool is suspended, and what was acknowledged
# can be read. Where there is room again, `pool clear` goes on without an end of the server: requests
# that failed (failmode=continue) can be sent again, and those that waited (failmode=wait) are answered.
# A kill and another import in between lose nothing that was durable.
. "$(dirname "$0")/lib.sh"
need_nbd_shell
need mkfs.ext4 jq
need_root "mounts and loop devices"
[ -e /dev/loop-control ] || skip "there are no loop devices here"
begin
truncate -s 330M disk.img
run mkfs.ext4 -q -F -O ^has_journal disk.img
mkdir "$RUN/small"
mount -o loop disk.img "$RUN/small" 2>.out || skip "mount: $(cat .out)"
undo "umount -l '$RUN/small'"
small=$RUN/small
run dd if=/dev/zero of="$small/ballast" bs=1M count=60 status=none
run dd if=/dev/zero of="$small/more" bs=1M count=125 status=none
truncate -s 256M "$small"/d{0,1,2}
truncate -s 64M "$small/l0"
run "$FOREBAY" pool create p raidz1 "$small"/d{0,1,2} log "$small/l0"
run "$FOREBAY" volume create -V 300M p/v
run "$FOREBAY" pool set failmode=continue p
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

say "clear is refused while there is no room"
refuse "$FOREBAY" pool clear p
grep -q "no space left" .out || fail "it does not say why: $(cat .out)"

say "kill -9 while suspended, and room again"
kill_server
rm "$small/ballast"
serve p
run nbd_shell -u "$(uri p/v)" -c 'exec(open("load.py").read())' -c "
check(h, $END)
for at in range($END, $END + 3):
    h.pwrite(bytes([at % 251 + 1, at // 251]) * (MB // 2), at * MB, nbd.CMD_FLAG_FUA)
check(h, $END + 3)"
run "$FOREBAY" pool clear p
run "$FOREBAY" pool wait p

say "a client that waits: failmode=wait"
run "$FOREBAY" pool set failmode=wait p
MORE=$((END + 70))
nbd_shell -u "$(uri p/v)" -c 'exec(open("load.py").read())' -c "
for at in range($END, $MORE):
    h.pwrite(bytes([at % 251 + 1, at // 251]) * (MB // 2), at * MB)
h.flush()
check(h, $MORE)" >waiter.out 2>&1 &
WAITER=$!
is_suspended() { "$FOREBAY" pool list | grep -q SUSPENDED; }
await 60 "the pool is suspended" is_suspended
sleep 2
kill -0 "$WAITER" || fail "the client did not wait: $(cat waiter.out)"
alive
rm "$small/more"
run "$FOREBAY" pool clear p
ended "$WAITER" "the client that waited"
wait "$WAITER" || fail "the client that waited: $(cat waiter.out)"
alive
[ "$("$FOREBAY" pool list --json | jq -r '.pools[0].health')" = ONLINE ] ||
    fail "after the clear: $("$FOREBAY" pool status p)"
run nbd_shell -u "$(uri p/v)" -c 'exec(open("load.py").read())' -c "check(h, $MORE)"
scrub_clean p
kill_server
serve p
run nbd_shell -u "$(uri p/v)" -c 'exec(open("load.py").read())' -c "check(h, $MORE)"
stop_server
run umount "$small"
pass "$END MiB before there was no room, all there when there was; $MORE by a client that waited"
