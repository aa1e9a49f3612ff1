#!/usr/bin/env bash
# A log device in memory under a real upsd with its dummy-ups: armed while the power holds, saved when it does not,
# when nobody can be asked, and at the end; back after kill -9, and after a loss of memory that came with a warning. A
# loss without one is told, and never passed over.
. "$(dirname "$0")/lib.sh"
need jq python3 upsrw
[ -x /lib/nut/upsd ] || skip "there is no /lib/nut/upsd"
need_nbd_shell
need_root "the programs of NUT"
[ -d /dev/shm ] || skip "there is no /dev/shm here"
begin
files 512M d0 d1
files 200M backup
MEMORY=/dev/shm/forebay-test-$$.log
undo "rm -f $MEMORY"

# ---------------------------------------------------------------------------- the power supply

export NUT_CONFPATH=$RUN/nut NUT_STATEPATH=$RUN/ups NUT_ALTPIDPATH=$RUN/ups
mkdir -m 750 "$NUT_CONFPATH" "$NUT_STATEPATH"
PORT=$(own_port)
printf 'ups.status: OL\nbattery.runtime: 600\n' >"$NUT_CONFPATH/rack1.dev"
printf '[rack1]\ndriver = dummy-ups\nport = %s\npollinterval = 1\n' "$NUT_CONFPATH/rack1.dev" >"$NUT_CONFPATH/ups.conf"
echo "LISTEN 127.0.0.1 $PORT" >"$NUT_CONFPATH/upsd.conf"
printf '[admin]\npassword = x\nactions = SET\n' >"$NUT_CONFPATH/upsd.users"
chmod 640 "$NUT_CONFPATH"/*
UPS=rack1@127.0.0.1:$PORT
/lib/nut/dummy-ups -a rack1 -u root >nut.log 2>&1 || skip "dummy-ups does not start: $(tail -n 1 nut.log)"
undo "kill \$(cat '$NUT_STATEPATH/dummy-ups-rack1.pid')"
/lib/nut/upsd -u root >>nut.log 2>&1 || skip "upsd does not start: $(tail -n 1 nut.log)"
upsd_signal() { kill "-$1" "$(cat "$NUT_STATEPATH/upsd.pid")" 2>/dev/null; }
undo "upsd_signal KILL"
supply_is() { [ "$(upsc "$UPS" ups.status 2>/dev/null)" = "$1" ]; }
# power STATUS RUNTIME
power() {
    run upsrw -s battery.runtime="$2" -u admin -p x "$UPS"
    run upsrw -s ups.status="$1" -u admin -p x "$UPS"
    await 10 "the supply is $1" supply_is "$1"
}
await 20 "the supply is on line" supply_is OL

memory() { pool_json status p | jq -r ".pools[0].logs[0].memory.$1"; }
state_is() { [ "$(memory state)" = "$1" ]; }
armed() { await 20 "the log is armed" state_is ARMED; }
has_event() { "$FOREBAY" pool events p | grep "log device.*$1" | grep -q "$2"; }
told() { await 10 "an event of $1: $2" has_event "$@"; }
writes() { goes_on told 300 "the writer"; }
METRICS=127.0.0.1:$((PORT + 1))
# metric NAME LABELS VALUE: what the server's metrics say of the log device
metric() {
    python3 -c 'import sys, urllib.request
page = urllib.request.urlopen("http://%s/metrics" % sys.argv[1], timeout=20).read().decode()
of = "pool=\"p\",device=\"%s\"%s" % (sys.argv[3], "," + sys.argv[4] if sys.argv[4] else "")
print([l.rsplit(" ", 1)[1] for l in page.splitlines() if l.startswith("forebay_log_memory_%s{%s}" % (sys.argv[2], of))])' \
        "$METRICS" "$1" "$DIR/backup" "$2" >.metric
    [ "$(cat .metric)" = "['$3']" ] || fail "the metrics say $1 $2: $(cat .metric), not $3"
}

# ---------------------------------------------------------------------------- made

say "refused: nothing protects it, no backup device, not empty"
refuse "$FOREBAY" pool create p mirror d0 d1 log dram:64M
grep -q "protection=none" .out || fail "$(cat .out)"
refuse "$FOREBAY" pool create p mirror d0 d1 log "dram:64M,ups=$UPS"
refuse "$FOREBAY" pool create p mirror d0 d1 log "dram:1G,backup=backup,ups=$UPS"
refuse "$FOREBAY" pool create p mirror d0 d1 log "dram:64M,protection=pmem,memory=$MEMORY"
grep -q "not persistent" .out || fail "$(cat .out)"
[ ! -e "$MEMORY" ] || fail "what was refused leaves memory behind"
head -c 1M /dev/urandom >other && truncate -s 200M other && mkfs.ext4 -q -F other
refuse "$FOREBAY" pool create p mirror d0 d1 log "dram:128M,backup=other,ups=$UPS"
file other | grep -q ext4 || [ "$(blkid -o value -s TYPE other)" = ext4 ] || fail "the file system is gone"

run "$FOREBAY" pool create p mirror d0 d1 log "dram:128M,backup=backup,ups=$UPS,memory=$MEMORY"
run "$FOREBAY" volume create -V 200M p/busy
[ ! -e "$MEMORY" ] || fail "commands leave memory behind"
[ "$(memory survives.kernel_crash)" = true ] || fail "on media it survives a kernel crash"

say "armed, killed, armed again"
serve p --metrics "$METRICS"
load 1
armed
metric state 'state="ARMED"' 1
metric state 'state="SAVED"' 0
metric survives 'event="power_loss"' 1
metric survives 'event="kernel_crash"' 0
metric runtime_seconds "" 600
[ "$(memory survives.power_loss)$(memory survives.kernel_crash)" = truefalse ] || fail "$("$FOREBAY" pool status p)"
writes
[ "$(memory unsaved_bytes)" -gt 0 ] || fail "nothing is in memory alone"
kill_server
end_of "$WRITER"
serve p --metrics "$METRICS"
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"

say "on battery: armed while it holds, saved when it does not"
load 2
armed
power "OB" 300
sleep 2
state_is ARMED || fail "the battery holds for five minutes, and the log is $(memory state)"
power "OB" 5
await 20 "the log is saved" state_is SAVED
told SAVED "holds for 5 s"
metric state 'state="SAVED"' 1
metric state 'state="ARMED"' 0
metric unsaved_bytes "" 0
metric runtime_seconds "" 5
writes
power "OL" 600
armed
say "upsd does not answer"
upsd_signal STOP
await 30 "the log is saved" state_is SAVED
told SAVED "cannot be asked\|too old"
writes
upsd_signal CONT
armed
power "OB LB" 600
await 20 "the log is saved" state_is SAVED
writes

say "the power is gone after that: memory too"
kill_server
end_of "$WRITER"
rm "$MEMORY"
serve p
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
power "OL" 600
load 3
armed
told RESTORED RESTORING
loaded "restored"
stop_server
[ ! -e "$MEMORY" ] || fail "a server that ended leaves memory behind"
serve p
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"

say "gone without a warning"
load 4
armed
writes
kill_server
end_of "$WRITER"
rm "$MEMORY"
refuse "$FOREBAY" serve p --listen "unix:$SOCKET"
grep -q "SAVE_FAILED" .out || fail "it does not say what is lost: $(cat .out)"
run "$FOREBAY" pool export -f p
refuse "$FOREBAY" pool import -d "$DIR" p
run "$FOREBAY" pool import -m -d "$DIR" p
run "$FOREBAY" pool export p
refuse "$FOREBAY" pool labelclear backup
run "$FOREBAY" pool labelclear -f backup

say "without protection, and it says so"
rm -f d0 d1
files 512M d0 d1
run "$FOREBAY" pool create q mirror d0 d1 log "dram:64M,memory=$MEMORY,protection=none"
[ "$(pool_json status q | jq -r '.pools[0].logs[0].memory | .state, .survives.power_loss' | xargs)" = \
    "UNPROTECTED false" ] || fail "$("$FOREBAY" pool status q)"
"$FOREBAY" pool status q | grep -q "power loss NO" || fail "$("$FOREBAY" pool status q)"
run "$FOREBAY" pool destroy q
pass "saved by battery, by silence and at the end; a loss is told"
