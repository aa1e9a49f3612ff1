#!/usr/bin/env bash
# A server as a service: settings from a file, seen by libnbd and OpenSSL's certificates.
# shellcheck disable=SC2016 # "$1" is for the inner shells
. "$(dirname "$0")/lib.sh"

need nbdinfo nbdcopy openssl jq python3
need_nbd_shell
begin
files 64M d0
run "$FOREBAY" pool create p d0
run "$FOREBAY" volume create -V 16M p/open
run "$FOREBAY" volume create -V 16M p/closed

# ---------------------------------------------------------------------------- the file, checked

CONFIG=$DIR/forebay.toml
check() { "$FOREBAY" serve --config "$CONFIG" --check "$@"; }
# wrong LINE WORDS TEXT: the file is refused with its line, and nothing is served.
wrong() {
    printf '%b' "$3" >"$CONFIG"
    refuse check
    grep -qF "$CONFIG, line $1" "$DIR/.out" || fail "no line $1 in: $(cat "$DIR/.out")"
    grep -qF "$2" "$DIR/.out" || fail "no '$2' in: $(cat "$DIR/.out")"
    [ "$(wc -l <"$DIR/.out")" = 1 ] || fail "more than one line: $(cat "$DIR/.out")"
    refuse "$FOREBAY" serve --config "$CONFIG"
}
wrong 2 'expected one of' 'plaintext = false\nlistne = []\n'
wrong 1 'no pool named' 'pools = ["q"]\n'
wrong 3 'without TLS' '# all of them\n\nlisten = ["tcp:0.0.0.0:0"]\n'
wrong 2 'nowhere' '[tls]\ncert = "/nowhere/c"\nkey = "/nowhere/k"\n'
wrong 1 'has 109 bytes' "listen = [\"unix:/$(printf 'x%.0s' {1..108})\"]\\n"
refuse "$FOREBAY" serve --config "$DIR/none" --check
# A pipe would be waited for; one of the shell has its writer already.
mkfifo "$DIR/pipe"
refuse "$FOREBAY" serve --config "$DIR/pipe" --check
run "$FOREBAY" serve --config <(echo 'pools = ["p"]') --check

pem() { openssl "$@" >/dev/null 2>"$DIR/.pem" || fail "openssl: $(cat "$DIR/.pem")"; }
# certificate NAME: a key, and a certificate of the CA.
certificate() {
    pem req -newkey rsa:2048 -nodes -keyout "$1-key.pem" -out "$1.csr" -subj "/CN=$1"
    printf 'subjectAltName=DNS:%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$1" >"$1.ext"
    pem x509 -req -in "$1.csr" -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 \
        -extfile "$1.ext" -out "$1-cert.pem"
}
pem req -x509 -newkey rsa:2048 -nodes -keyout ca-key.pem -out ca-cert.pem -days 2 -subj /CN=lab
certificate localhost
certificate alice
mkdir client
cp ca-cert.pem client/
cp alice-cert.pem client/client-cert.pem
cp alice-key.pem client/client-key.pem

cat >"$CONFIG" <<END
listen = ["unix:$SOCKET"]
pools = ["p"]
directories = ["$DIR"]

[tls]
cert = "$DIR/localhost-cert.pem"
key = "$DIR/localhost-key.pem"
ca = "$DIR/ca-cert.pem"

[allow]
alice = ["p/open"]

[limits]
connections = 8
request_bytes = "1M"
END
run check
check --json >"$DIR/.json" || fail "no JSON"
jq -e '.tls and .limits.connections == 8 and .limits.request_bytes == 1048576 and .limits.stall_seconds == 60' \
    "$DIR/.json" >/dev/null || fail "settings: $(cat "$DIR/.json")"

# ---------------------------------------------------------------------------- the file, in force

# start COMMAND...: a server in the background; returns when it is ready.
start() {
    SERVES=$((SERVES + 1))
    SERVE_LOG=$DIR/serve.$SERVES.log
    "$@" >"$SERVE_LOG" 2>&1 &
    SERVER=$!
    disown "$SERVER"
    await 120 "the server is ready: $*" grep -q 'ready: ' "$SERVE_LOG"
}
start "$FOREBAY" serve --config "$CONFIG"
secure() { echo "nbds+unix:///$1?socket=$SOCKET&tls-certificates=$DIR/client&tls-hostname=localhost"; }
refuse nbdinfo --size "$(uri p/open)"
[ "$(nbdinfo --size "$(secure p/open)")" = $((16 << 20)) ] || fail "alice cannot open p/open"
refuse nbdinfo --size "$(secure p/closed)"
nbd_shell -c '
def client():
    other = nbd.NBD()
    other.set_uri_allow_local_file(True)
    other.connect_uri("'"$(secure p/open)"'")
    return other
clients = [client()]
longest = clients[0].get_block_size(nbd.SIZE_MAXIMUM)
assert longest == 1 << 20, longest
try:
    while len(clients) < 9:
        clients.append(client())
except nbd.Error:
    pass
assert len(clients) == 8, len(clients)
' || fail "the limits of the file do not hold"
stop_server
# The command line wins: another socket, and a folder where there is no pool.
start "$FOREBAY" serve --config "$CONFIG" --listen "unix:$RUN/t"
[ -S "$RUN/t" ] && [ ! -S "$SOCKET" ] || fail "--listen does not win over the file"
stop_server
mkdir empty
refuse "$FOREBAY" serve --config "$CONFIG" -d "$DIR/empty"

# ---------------------------------------------------------------------------- the service manager

need systemd-socket-activate cc
NOTIFY=$RUN/notify
python3 "$HERE/notified.py" "$NOTIFY" "$DIR/notified" &
NOTIFIED=$!
undo "kill $NOTIFIED"
await 20 "the notify socket" test -S "$NOTIFY"
run cc -shared -fPIC -o "$DIR/stuck.so" "$HERE/stuck.c" -ldl
told() { grep -q "^$SERVER $1" "$DIR/notified"; }
signs() { grep -c "^$SERVER WATCHDOG=1" "$DIR/notified"; }
more_signs() { [ "$(signs)" -gt "$1" ]; }

# A manager with a watchdog of three seconds, which a server is to hear from three times as often.
start env NOTIFY_SOCKET="$NOTIFY" WATCHDOG_USEC=3000000 STUCK_WHEN="$DIR/stuck" \
    LD_PRELOAD="$DIR/stuck.so" "$FOREBAY" serve p --listen "unix:$SOCKET"
await 20 "READY with a status" told 'READY=1 STATUS=serving p (ONLINE); 0 clients'
grep -n 'READY=1\|opening' "$DIR/notified" | head -n 1 | grep -q "opening 'p'" || fail "READY came before the pool was open"
await 20 "signs of life" more_signs 1
nbd_shell -u "$(uri p/open)" -c "
import time
for _ in range(600):
    if 'serving p (ONLINE); 1 client' in open('$DIR/notified').read(): break
    time.sleep(0.1)
else: raise SystemExit('the status does not count clients')" || fail "no status of clients"
stop_server
grep -q "STOPPING=1 STATUS=answering" "$DIR/notified" || fail "no STOPPING: $(cat "$DIR/notified")"

# A main thread that stands still gives no sign, although the process lives.
start env NOTIFY_SOCKET="$NOTIFY" WATCHDOG_USEC=3000000 STUCK_WHEN="$DIR/stuck" \
    LD_PRELOAD="$DIR/stuck.so" "$FOREBAY" serve p --listen "unix:$SOCKET"
await 20 "signs of life" more_signs 1
touch "$DIR/stuck"
nbdinfo "$(uri p/open)" >/dev/null 2>&1 &
undo "kill $!"
await 20 "the main thread stands still" test ! -e "$DIR/stuck"
before=$(signs)
sleep 3
[ "$(signs)" = "$before" ] || fail "a server that answers nobody gave $(($(signs) - before)) signs of life"
[ "$(find "/proc/$SERVER/task" -mindepth 1 -maxdepth 1 | wc -l)" -gt 1 ] || fail "it has no other thread"
kill_server

# Sockets of a manager: the first client starts the server, and is answered.
start_activated() {
    SERVES=$((SERVES + 1))
    SERVE_LOG=$DIR/serve.$SERVES.log
    systemd-socket-activate -l "$SOCKET" -E FOREBAY_STATE_DIR="$FOREBAY_STATE_DIR" \
        "$FOREBAY" serve p "$@" >"$SERVE_LOG" 2>&1 &
    SERVER=$!
    disown "$SERVER"
    await 20 "the manager listens" grep -q 'Listening on' "$SERVE_LOG"
}
rm -f "$SOCKET"
start_activated
[ "$(nbdinfo --size "$(uri p/open)")" = $((16 << 20)) ] || fail "the first client was not answered"
grep -q "ready: serving p (2 volumes) on 1 listener" "$SERVE_LOG" || fail "$(cat "$SERVE_LOG")"
stop_server
[ -S "$SOCKET" ] || fail "the server has removed the manager's socket"
# An address that the manager has opened already is not opened again; others are.
rm -f "$SOCKET"
start_activated --listen "unix:$SOCKET" --listen "unix:$RUN/t"
[ "$(nbdinfo --size "$(uri p/open)")" = $((16 << 20)) ] || fail "the first client was not answered"
grep -q "on 2 listeners" "$SERVE_LOG" || fail "$(cat "$SERVE_LOG")"
stop_server

pass "a file's settings hold, wrong ones are named; READY, signs of life and sockets of a manager"
