#!/usr/bin/env bash
# Who is let in. The binary with --tls-cert: nothing in plain text, no client without a certificate of the
# right authority, none to exports that its identity is not allowed; libnbd copies a volume in and out and
# finds the same. Plain text off loopback is refused unless asked for, and the control socket does not
# answer another user's process, though its file would let it in.
. "$(dirname "$0")/lib.sh"
need openssl python3 nbdcopy nbdinfo
need_nbd_shell
nbd_shell -c 'import sys; sys.exit(not h.supports_tls())' >/dev/null 2>&1 || skip "libnbd has no TLS here"
begin
files 128M d0 d1
run "$FOREBAY" pool create -f p mirror "$DIR"/d{0,1}
run "$FOREBAY" volume create -V 16M p/mine
run "$FOREBAY" volume create -V 16M p/theirs

# An authority, and who it vouches for: authority NAME; certificate AUTHORITY NAME FILE USE.
authority() {
    run openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$1" \
        -addext basicConstraints=critical,CA:true -addext keyUsage=critical,keyCertSign \
        -keyout "$1.key" -out "$1.pem"
}
certificate() {
    run openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$2" \
        -keyout "$3-key.pem" -out "$3.csr"
    printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=%s\n' "$4" >"$3.ext"
    run openssl x509 -req -in "$3.csr" -CA "$1.pem" -CAkey "$1.key" -CAcreateserial -days 2 \
        -extfile "$3.ext" -out "$3-cert.pem"
}
authority right
authority wrong
certificate right server server serverAuth
for who in me stranger; do
    mkdir "$who"
    certificate right "$who" "$who/client" clientAuth
done
mkdir forged nobody
certificate wrong me forged/client clientAuth
for who in me stranger forged nobody; do cp right.pem "$who/ca-cert.pem"; done
cat >allow.toml <<'END'
[allow]
"me" = ["p/mine"]
END
TLS=(--tls-cert server-cert.pem --tls-key server-key.pem --tls-ca right.pem --tls-allow allow.toml)
PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
serve p "${TLS[@]}" --listen "tcp:127.0.0.1:$PORT"

as() { echo "nbds://127.0.0.1:$PORT/$2?tls-certificates=$DIR/$1"; }
say "plain text gets nothing, on no listener"
refuse nbdinfo --size "nbd://127.0.0.1:$PORT/p/mine"
refuse nbdinfo --size "$(uri p/mine)"
refuse nbdinfo --list "$(uri '')"
alive
say "certificates: none, of another authority, of somebody who is not listed"
refuse nbdinfo --size "$(as nobody p/mine)"
refuse nbdinfo --size "$(as forged p/mine)"
refuse nbdinfo --size "$(as stranger p/mine)"
refuse nbdinfo --size "$(as me p/theirs)"
run nbdinfo --size "$(as me p/mine)"
run nbdinfo --list "$(as me '')"
grep -q theirs .out && fail "the list shows what is not allowed: $(cat .out)"
grep -q mine .out || fail "the list does not show what is allowed: $(cat .out)"
alive
say "a volume goes in and out"
random_file image 16777216
run nbdcopy --flush image "$(as me p/mine)"
run nbdcopy "$(as me p/mine)" back
[ "$(hash_of image)" = "$(hash_of back)" ] || fail "what comes back is not what went in"
alive
kill_server
serve p "${TLS[@]}" --listen "tcp:127.0.0.1:$PORT"
run nbdcopy "$(as me p/mine)" back
[ "$(hash_of image)" = "$(hash_of back)" ] || fail "after a kill: what comes back is not what went in"
stop_server

say "plain text off loopback"
refuse "$FOREBAY" serve p --listen tcp:0.0.0.0:0
grep -q -- '--plaintext' .out || fail "refused for another reason: $(cat .out)"

# The modes of the folder and of the socket would keep them out already: they are taken away here.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    say "the control socket and another user"
    cat >"$RUN/knock.py" <<'END'
import glob, json, os, socket, struct, sys
ask = json.dumps({"version": 1, "pool": "", "action": {"do": "hello"}}).encode()
s = socket.socket(socket.AF_UNIX)
s.settimeout(20)
s.connect(glob.glob(sys.argv[1] + "/control-*.sock")[0])
try:
    s.sendall(struct.pack(">I", len(ask)) + ask)
    got = s.recv(4)
except (ConnectionError, BrokenPipeError):
    got = b""
print("uid %d: %s" % (os.getuid(), "answered" if got else "not answered"))
END
    serve p
    chmod 755 "$FOREBAY_STATE_DIR" "$RUN/knock.py"
    chmod 666 "$FOREBAY_STATE_DIR"/control-*.sock
    run /usr/bin/python3 "$RUN/knock.py" "$FOREBAY_STATE_DIR"
    grep -q 'uid 0: answered' .out || fail "the owner is not answered: $(cat .out)"
    run setpriv --reuid 65534 --regid 65534 --clear-groups /usr/bin/python3 "$RUN/knock.py" "$FOREBAY_STATE_DIR"
    grep -q 'uid 65534: not answered' .out || fail "a stranger is answered: $(cat .out)"
    alive
    stop_server
fi
pass "strangers stay outside"
