#!/usr/bin/env bash
# A flush on one connection covers what every connection had completed; sync=always needs no flush.
. "$(dirname "$0")/lib.sh"
need_nbd_shell
begin
files 256M d0 d1
files 64M l0
run "$FOREBAY" pool create p mirror "$DIR"/d{0,1} log "$DIR/l0"
run "$FOREBAY" volume create -V 64M p/v
run "$FOREBAY" volume create -V 64M -o sync=always p/always
serve p
run nbd_shell -c "
import os
others = []
for i in range(32):
    c = nbd.NBD()
    c.connect_uri('$(uri p/v)')
    c.pwrite(bytes([i + 1]) * 4096, i * 65536)
    others.append(c)
h.connect_uri('$(uri p/v)')
assert h.can_multi_conn()
h.flush()
# No flush, no FUA, no orderly end: the volume's property makes it durable.
a = nbd.NBD()
a.connect_uri('$(uri p/always)')
a.pwrite(b'always' * 2 * 2048, 8192)
os.kill($SERVER, 9)
os._exit(0)"
kill_server
serve p
run nbd_shell -u "$(uri p/v)" -c '
for i in range(32):
    assert h.pread(4096, i * 65536) == bytes([i + 1]) * 4096, "connection %d" % i'
run nbd_shell -u "$(uri p/always)" -c 'assert h.pread(24576, 8192) == b"always" * 4096'
alive
pass "32 connections, one flush, kill -9"
