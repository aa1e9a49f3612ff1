#!/usr/bin/env bash
# A side of the log on another host: a network of its own, TLS, and what networks and hosts do to it.
# Nothing that was acknowledged is lost, and the side comes back by itself when its host does.
. "$(dirname "$0")/lib.sh"
need_root "network namespaces"
need python3 jq ip nsenter unshare openssl
need_nbd_shell
begin
unshare -n true 2>/dev/null || skip "no network namespaces here"
unshare -n sleep 1000 &
FAR=$!
disown $FAR
undo "kill $FAR"
there() { nsenter -t $FAR -n "$@"; }
await 10 "the other network" sh -c "[ \$(readlink /proc/$FAR/ns/net) != \$(readlink /proc/self/ns/net) ]"
WIRE=fb$(($$ % 100000))
NET=10.231.$(($$ % 250))
ip link add "${WIRE}a" type veth peer name "${WIRE}b" netns $FAR 2>"$DIR/.out" || skip "$(cat "$DIR/.out")"
undo "ip link del ${WIRE}a"
run ip addr add "$NET.1/24" dev "${WIRE}a"
run ip link set "${WIRE}a" up
run there ip addr add "$NET.2/24" dev "${WIRE}b"
wire() { run there ip link set "${WIRE}b" "$1"; }
wire up

# A certificate of the far host, and one of the near host.
mkdir "$DIR/tls"
pem() { openssl "$@" >/dev/null 2>"$DIR/.pem" || fail "openssl: $(cat "$DIR/.pem")"; }
key() { echo "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"; }
# shellcheck disable=SC2046
pem req -x509 $(key) -days 2 -subj /CN=ca -keyout "$DIR/ca.key" -out "$DIR/tls/ca-cert.pem"
for host in far client; do
    # shellcheck disable=SC2046
    pem req $(key) -subj /CN=$host -addext "subjectAltName=IP:$NET.2" -keyout "$DIR/tls/$host-key.pem" -out "$DIR/$host.csr"
    pem x509 -req -in "$DIR/$host.csr" -CA "$DIR/tls/ca-cert.pem" -CAkey "$DIR/ca.key" -CAcreateserial -days 2 \
        -copy_extensions copy -out "$DIR/tls/$host-cert.pem"
done
URI="nbds://$NET.2/side?tls-certificates=$DIR/tls"
target() {
    nsenter -t $FAR -n "$FOREBAY" log-target --listen "tcp:$NET.2:10809" --tls-cert "$DIR/tls/far-cert.pem" \
        --tls-key "$DIR/tls/far-key.pem" --tls-ca "$DIR/tls/ca-cert.pem" side="$DIR/far" >>"$DIR/target.log" 2>&1 &
    TARGET=$!
    disown $TARGET
    undo "kill -9 $TARGET"
    await 20 "the far side serves: $(cat "$DIR/target.log")" ready_times "$1"
}
ready_times() { [ "$(grep -c 'ready: ' "$DIR/target.log")" = "$1" ]; }
end_target() { kill "-$1" $TARGET; ended $TARGET "the far side"; }
side() { "$FOREBAY" pool status --json p | jq -r --arg uri "$URI" '.. | objects | select(.name? == $uri) | .state'; }
refused() { "$FOREBAY" pool events p --json | grep log-device-refused | grep -q "has lost this pool's label"; }
is() { [ "$(side)" = "$1" ]; }
files 256M d0 d1 d2
files 64M l0 far
target 1
say "a pool with it, and who else may write there"
run "$FOREBAY" pool create -o txg_timeout=1 -o log_timeout=2 p raidz1 "$DIR"/d{0,1,2} log mirror "$DIR/l0" "$URI"
run "$FOREBAY" volume create -V 64M p/busy
serve p
load 1
nbd_shell -c "
h.set_tls(nbd.TLS_REQUIRE); h.set_tls_certificates('$DIR/tls'); h.set_export_name('side'); h.connect_tcp('$NET.2', '10809')
assert h.get_size() == 64 << 20 and h.can_fua() and h.can_flush() and not h.can_multi_conn()
# Only who opened it before the pool's last write is refused.
import hashlib, time
def content(): return hashlib.sha1(b''.join(h.pread(1 << 20, at << 20) for at in range(64))).digest()
before = content()
for _ in range(200):
    if content() != before: break
    time.sleep(0.05)
else:
    raise SystemExit('the pool does not write')
try:
    h.pwrite(b'x' * 4096, 0)
    raise SystemExit('another client wrote beside the pool')
except nbd.Error as e:
    assert e.errno == 'EIO', e
" >"$DIR/.out" 2>&1 || fail "$(cat "$DIR/.out")"
loaded "a log on two hosts"
await 20 "the side is in use" is ONLINE

say "partition, and its end"
load 2
wire down
await 10 "the side is given up" is FAULTED
loaded "without the other host"
load 3
wire up
await 10 "the side comes back by itself" is ONLINE
loaded "with the other host again"

say "the far host loses its power: the connection stays half open"
load 4
wire down
end_target KILL
wire up
await 10 "the side is given up" is FAULTED
target 2
await 10 "the side comes back by itself" is ONLINE
say "the far server stands still, and goes on"
kill -STOP $TARGET
await 10 "the side is given up" is FAULTED
kill -CONT $TARGET
await 10 "the side comes back by itself" is ONLINE
loaded "half-open connections"

say "kill -9 under load; each side alone has everything"
load 5
kill_server
wait "$WRITER" || fail "the writer: $(cat "$DIR/writer.out")"
wire down
serve p
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
is UNAVAIL || fail "away at import, and the side is $(side)"
wire up
await 10 "the side comes back by itself" is ONLINE
load 6
kill_server
wait "$WRITER" || fail "the writer: $(cat "$DIR/writer.out")"
mv "$DIR/l0" "$DIR/l0.away"
serve p
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
mv "$DIR/l0.away" "$DIR/l0"
run "$FOREBAY" pool online p "$DIR/l0"

say "the far side comes back empty"
load 7
end_target INT
await 10 "the side is given up" is FAULTED
rm "$DIR/far"
files 64M far
target 3
await 10 "it is not taken for the old one" refused
is FAULTED || fail "an empty device was taken for a side: $(side)"
run "$FOREBAY" pool replace p "$URI"
await 10 "the side is new" is ONLINE
loaded "a new side"
no_errors p

say "memory that the other host mirrors: partition, and a machine that loses its memory"
run "$FOREBAY" pool destroy p
stop_server
MEMORY=/dev/shm/forebay-test-$$.log
undo "rm -f $MEMORY"
rm "$DIR/ledger"
run "$FOREBAY" pool create -f -o txg_timeout=1 -o log_timeout=2 p raidz1 "$DIR"/d{0,1,2} \
    log mirror "dram:64M,protection=mirror,memory=$MEMORY" "$URI"
run "$FOREBAY" volume create -V 64M p/busy
serve p
memory() { [ "$("$FOREBAY" pool status --json p | jq -r '.. | objects | .memory? // empty | .state')" = "$1" ]; }
load 8
await 20 "memory is used" memory ARMED
wire down
await 10 "memory alone is not used" memory DISARMED
loaded "without the other host"
wire up
await 10 "it is used with the other side" memory ARMED
load 9
kill_server
wait "$WRITER" || fail "the writer: $(cat "$DIR/writer.out")"
rm "$MEMORY"
serve p
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
no_errors p
stop_server
pass "partition, half-open connection, standstill, kills on both sides, each side alone, empty"
