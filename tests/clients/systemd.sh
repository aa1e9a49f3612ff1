#!/usr/bin/env bash
# The units under a real systemd: an instance of its user manager in a mount namespace of its own, as
# root, so that sandbox and limits hold. Clients start the server, kill it, and find their writes.
. "$(dirname "$0")/lib.sh"

need nbdinfo python3 jq cc unshare systemctl systemd-analyze journalctl
need_root "mount namespaces"
SYSTEMD=/lib/systemd/systemd
JOURNALD=/lib/systemd/systemd-journald
[ -x $SYSTEMD ] && [ -x $JOURNALD ] || skip "systemd is not installed"
UNITS=$ROOT/packaging/systemd

if [ -z "${INSIDE:-}" ]; then
    exposure=$(systemd-analyze security --offline=yes "$UNITS/forebay.service" 2>&1 |
        sed -n 's/.*exposure level for forebay.service: \([0-9.]*\).*/\1/p')
    [ -n "$exposure" ] || fail "systemd-analyze gives no exposure"
    awk "BEGIN { exit !($exposure < 3.0) }" || fail "exposure $exposure is not below 3.0"
    INSIDE=1 EXPOSURE=$exposure exec unshare --mount --propagation private "$0"
fi

begin
# /run is this namespace's own: here systemd is booted, and nothing of the machine's is seen.
BIG=$DIR
mount -t tmpfs tmpfs /run || skip "no mount namespace"
mkdir -p /run/systemd/system /run/systemd/journal /run/manager/systemd/user/forebay.service.d \
    /run/data /run/state /run/log/journal /run/bin
chmod 700 /run/manager /run/state
mount --bind "$BIG" /run/data
# What systemd as process 1 makes at its start: files that stand for what a sandbox hides.
for nodes in /run/systemd/inaccessible /run/manager/systemd/inaccessible; do
    mkdir -m 755 $nodes && mkdir -m 0 $nodes/dir
    (umask 777; : >$nodes/reg; mkfifo $nodes/fifo; mknod $nodes/chr c 0 0; mknod $nodes/blk b 0 0)
    python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('$nodes/sock')"
done
cp "$FOREBAY" /run/bin/forebay
cc -shared -fPIC -o /run/bin/stuck.so "$HERE/stuck.c" -ldl || fail "cc"
{ grep -v '^forebay:' /etc/group; echo 'forebay:x:64999:'; } >/run/group
mount --bind /run/group /etc/group
export XDG_RUNTIME_DIR=/run/manager FOREBAY_STATE_DIR=/run/state HOME=/run/state
unset DBUS_SESSION_BUS_ADDRESS
# Only what the place asks for is changed.
sed -e 's|/usr/bin/forebay|/run/bin/forebay|' -e 's|/etc/forebay/|/run/data/|' \
    "$UNITS/forebay.service" >/run/manager/systemd/user/forebay.service
sed -e 's|127.0.0.1:10809|127.0.0.1:0|' "$UNITS/forebay.socket" >/run/manager/systemd/user/forebay.socket
cat >/run/manager/systemd/user/forebay.service.d/place.conf <<'END'
[Service]
Environment=FOREBAY_STATE_DIR=/run/state STUCK_WHEN=/run/data/stuck LD_PRELOAD=/run/bin/stuck.so
ReadWritePaths=/run/data /run/state
WatchdogSec=3
ExecStopPost=sh -c 'echo "$$SERVICE_RESULT" >>/run/data/results'
END
SOCKET=/run/forebay/nbd.sock
cd /run/data || exit 1
truncate -s 64M d0 l0
run "$FOREBAY" pool create p d0 log l0
run "$FOREBAY" volume create -V 16M p/busy
printf '[limits]\nconnections = 64\n' >forebay.toml

$JOURNALD >/dev/null 2>&1 &
JOURNAL=$!
undo "kill $JOURNAL"
await 20 "the journal" test -S /run/systemd/journal/stdout
SYSTEMD_LOG_TARGET=console $SYSTEMD --user --unit=basic.target >"$BIG/systemd.log" 2>&1 &
MANAGER=$!
ctl() { systemctl --user "$@"; }
undo "systemctl --user stop forebay.socket forebay.service; kill $MANAGER"
await 60 "systemd runs" ctl is-system-running
of() { ctl show forebay.service -p "$1" --value; }
is() { [ "$(of "$1")" = "$2" ]; }

# ---------------------------------------------------------------------------- sockets start it

run ctl start forebay.socket
is ActiveState inactive || fail "it runs before a client came: $(of ActiveState)"
[ "$(stat -c '%a %G' $SOCKET)" = '660 forebay' ] || fail "the socket is $(stat -c '%a %G' $SOCKET)"
[ "$(nbdinfo --size "$(uri p/busy)")" = $((16 << 20)) ] || { journalctl -D /run/log/journal --no-pager -o cat >"$BIG/journal.txt"; tail -n 20 "$BIG/journal.txt"; tail -n 20 "$BIG/systemd.log"; fail "the first client"; }
await 60 "it says that it is ready" is ActiveState active
case $(of StatusText) in 'serving p (ONLINE); '*) ;; *) fail "status '$(of StatusText)'" ;; esac
PID=$(of MainPID)
# (Only the manager of a whole machine can raise the limit itself.)
is LimitMEMLOCK infinity || fail "locked memory: $(of LimitMEMLOCK)"
[ "$(sed -n 's/^CapEff:\t//p' "/proc/$PID/status")" = 0000000000200000 ] || fail "$(grep Cap "/proc/$PID/status")"
[ "$(sed -n 's/^Seccomp:\t//p' "/proc/$PID/status")" = 2 ] || fail "no filter of system calls"
nsenter -t "$PID" -m sh -c ': >/usr/forebay-test' 2>/dev/null && fail "it can write to /usr"

# ---------------------------------------------------------------------------- killed, and started

busy() {
    rm -f "$DIR/told"
    python3 "$HERE/ledger.py" write "$SOCKET" p/busy "$DIR/ledger" --seconds 600 --seed "$1" \
        --expect-end --told "$DIR/told" >"$DIR/writer.out" 2>&1 &
    WRITER=$!
    goes_on "$DIR/told" 500 "the writer"
}
restarted() { [ "$(of MainPID)" != "$PID" ] && is ActiveState active; }
busy 1
run ctl kill -s KILL --kill-who=main forebay.service
# This client comes while nobody serves, and waits at the socket.
[ "$(nbdinfo --size "$(uri p/busy)")" = $((16 << 20)) ] || fail "a client during the restart"
await 60 "the restart" restarted
is NRestarts 1 || fail "$(of NRestarts) restarts"
end_of $WRITER
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"

# ---------------------------------------------------------------------------- stands still

PID=$(of MainPID)
touch /run/data/stuck
nbdinfo "$(uri p/busy)" >/dev/null 2>&1 &
STUCK=$!
await 60 "the server that stands still is replaced" restarted
end_of $STUCK
[ "$(tail -n 1 results)" = watchdog ] || fail "it ended by $(tail -n 1 results), not by the watchdog"
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"

# ---------------------------------------------------------------------------- stopped, and started

run ctl stop forebay.service
is Result success || fail "its end counts as $(of Result)"
[ "$(nbdinfo --size "$(uri p/busy)")" = $((16 << 20)) ] || fail "the sockets did not start it again"
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
# Levels in the journal: a healthy start is information, and nothing of it has a time of its own.
# Events have fields by which they are found.
run "$FOREBAY" pool scrub -w p
found() {
    journalctl -D /run/log/journal --no-pager -o json FOREBAY_POOL=p FOREBAY_EVENT="$1" 2>/dev/null |
        jq -r '.PRIORITY + " " + .FOREBAY_SEQUENCE + " " + .MESSAGE' | grep -q "^[4-6] [0-9]* pool 'p' $1: "
}
await 20 "the journal has the event" found scan-ended
levels=$(journalctl -D /run/log/journal -t forebay -o json --no-pager 2>/dev/null | jq -r '.PRIORITY + " " + .MESSAGE')
echo "$levels" | grep -q '^6 ready: serving p' || fail "the journal has: $levels"
run ctl stop forebay.socket forebay.service
printf '[limits]\nconnections = many\n' >forebay.toml
refuse ctl start forebay.service
levels=$(journalctl -D /run/log/journal -t forebay -o json --no-pager 2>/dev/null | jq -r '.PRIORITY + " " + .MESSAGE')
echo "$levels" | grep -q '^3 /run/data/forebay.toml, line 2' || fail "the journal has: $levels"

pass "exposure $EXPOSURE; sockets start it, kill -9 and a main thread that stands still lose nothing"
