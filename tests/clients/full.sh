#!/usr/bin/env bash
# A sparse volume larger than its pool: writes end with ENOSPC, reads go on, a trim makes room.
. "$(dirname "$0")/lib.sh"
need_nbd_shell
begin
files 128M d0 d1 d2
files 64M l0
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2} log "$DIR/l0"
refuse "$FOREBAY" volume create -V 1G p/v
run "$FOREBAY" volume create -V 1G -s p/v
serve p
cat >"$DIR/fill.py" <<'P'
import errno, time
MB = 1 << 20
def fill(h, first):
    """Writes distinct megabytes until there is no space; returns how many were accepted."""
    at = first
    while at < 1024:
        try:
            h.pwrite(bytes([at % 251 + 1, at // 251]) * (MB // 2), at * MB, nbd.CMD_FLAG_FUA)
        except nbd.Error as error:
            assert error.errno == "ENOSPC", error
            return at
        at += 1
    raise SystemExit("1 GiB went into a pool of 256 MiB")
def check(h, first, end):
    for at in range(first, end):
        assert h.pread(MB, at * MB) == bytes([at % 251 + 1, at // 251]) * (MB // 2), "MiB %d" % at
P
say "fill"
run nbd_shell -u "$(uri p/v)" -c "exec(open('$DIR/fill.py').read())" -c "
end = fill(h, 0)
assert end > 100, 'full after %d MiB' % end
check(h, 0, end)
print(end)"
END=$(tail -n 1 "$DIR/.out")
say "full after $END MiB; kill -9 while full"
alive
kill_server
serve p
run nbd_shell -u "$(uri p/v)" -c "exec(open('$DIR/fill.py').read())" -c "
check(h, 0, $END)
# Full is full on another connection, in another place, and for a while.
assert fill(h, $END) - $END < 16
h.trim(40 * MB, 20 * MB, nbd.CMD_FLAG_FUA)
# What was freed can be given out once a commit has noted it.
deadline = time.time() + 160
while True:
    end = fill(h, 900)
    if end >= 915: break
    if time.time() > deadline: raise SystemExit('40 MiB trimmed, %d MiB writable after 160 s' % (end - 900))
    time.sleep(0.5)
check(h, 0, 20)
check(h, 60, $END)
check(h, 900, end)
assert h.pread(MB, 25 * MB) == bytes(MB)"
alive
say "overwriting in a pool that is nearly full"
run nbd_shell -u "$(uri p/v)" -c "exec(open('$DIR/fill.py').read())" -c "
h.trim(124 * MB, 900 * MB, nbd.CMD_FLAG_FUA)
h.trim(20 * MB, 60 * MB, nbd.CMD_FLAG_FUA)
import random
rng = random.Random(1)
last = {}
tries = 0
for i in range($(longer 6000 60000)):
    block = rng.randrange(0, 20 * 256)
    data = i.to_bytes(4, 'big') * 1024
    while True:
        try:
            h.pwrite(data, block * 4096)
            break
        except nbd.Error as error:
            assert error.errno == 'ENOSPC', error
            tries += 1
            assert tries < 3200, 'no room to overwrite after 160 s of waiting'
            time.sleep(0.05)
    last[block] = data
h.flush()
for block, data in last.items():
    assert h.pread(4096, block * 4096) == data
check(h, 80, $END)"
alive
stop_server
serve p
run nbd_shell -u "$(uri p/v)" -c "exec(open('$DIR/fill.py').read())" -c "check(h, 80, $END)"
scrub_clean p
pass "full at $END MiB, trimmed, written again"
