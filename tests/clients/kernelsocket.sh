#!/usr/bin/env bash
# Connections for the kernel's NBD client, as libnbd sees them: handed out by the control socket, without TLS and
# without a cache to be flushed. What was answered is there after kill -9.
. "$(dirname "$0")/lib.sh"
need_nbd_shell
need openssl
begin
files 256M d0 d1 d2
files 64M l0
run "$FOREBAY" pool create -o txg_timeout=60 p raidz1 "$DIR"/d{0,1,2} log "$DIR/l0"
run "$FOREBAY" volume create -V 64M p/v
run openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
    -keyout key.pem -out cert.pem
serve p --tls-cert "$DIR/cert.pem" --tls-key "$DIR/key.pem"
cat >client.py <<'END'
import json, os, socket, struct, sys
import nbd

control, step = sys.argv[1:]
s = socket.socket(socket.AF_UNIX)
s.connect(control)

def ask(action):
    body = json.dumps({"version": 1, "pool": "", "action": action}).encode()
    s.sendall(struct.pack(">I", len(body)) + body)
    def exactly(n):
        got = b""
        while len(got) < n:
            more = s.recv(n - len(got))
            assert more, "the server ended the connection"
            got += more
        return got
    return json.loads(exactly(struct.unpack(">I", exactly(4))[0]))

reply = ask({"do": "nbd"})
assert reply == {"ok": "done"}, reply
h = nbd.NBD()
h.set_export_name("p/v")
h.connect_socket(s.detach())
assert not h.can_flush() and not h.can_fua(), "there is no cache to be flushed"
assert h.can_multi_conn() and h.can_trim() and not h.is_read_only()
assert h.get_size() == 64 << 20
block = lambda n: struct.pack(">I", n * 2654435761 % 2**32) * 1024
if step == "write":
    h.pwrite(b"\xff" * (1 << 20), 32 << 20)
    for n in range(200):
        h.pwrite(block(n), n * 7 % 200 * 65536)
    h.trim(65536, 32 << 20)
    h.zero(65536, (32 << 20) + 131072)
    # No disconnect: the server is killed with the connection open.
    os._exit(0)
for n in range(200):
    assert h.pread(4096, n * 7 % 200 * 65536) == block(n), f"write {n} was answered, and is lost"
rest = h.pread(1 << 20, 32 << 20)
expected = bytearray(b"\xff" * (1 << 20))
expected[0:65536] = expected[131072:196608] = bytes(65536)
assert rest == bytes(expected), "trims and zeroes were answered, and are lost"
END
client() { PATH=/usr/bin:$PATH python3 client.py "$FOREBAY_STATE_DIR/control-$SERVER.sock" "$1"; }
client write || fail "the client that writes"
kill_server
serve p --tls-cert "$DIR/cert.pem" --tls-key "$DIR/key.pem"
client read || fail "after kill -9"
alive
scrub_clean p
stop_server
pass "200 writes, a trim and zeroes were there after kill -9, without a flush"
