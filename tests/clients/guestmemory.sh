#!/usr/bin/env bash
# The power of a machine fails whose log is in memory: a guest is killed under durable writes, and boots again. With a
# power supply that warned, nothing is lost; on persistent memory (memmap=, ext4 with DAX, MAP_SYNC) nothing is lost
# without a warning; without protection the import says what is lost, and goes on without it when it is told to.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/guest.lib.sh"
need python3 mkfs.ext4 upsrw
[ -x /lib/nut/upsd ] || skip "there is no /lib/nut/upsd"
need_root "the programs of NUT"
begin
MODULES+=(libnvdimm nd_btt nd_pmem nd_e820)
need_guest
PORT=$(own_port)
UPS_PORT=$((PORT + 1))
# The real upsd with its dummy-ups, on the host: the guest asks it over its network.
export NUT_CONFPATH=$RUN/nut NUT_STATEPATH=$RUN/ups NUT_ALTPIDPATH=$RUN/ups
mkdir -m 750 "$NUT_CONFPATH" "$NUT_STATEPATH"
printf 'ups.status: OL\nbattery.runtime: 600\n' >"$NUT_CONFPATH/rack1.dev"
printf '[rack1]\ndriver = dummy-ups\nport = %s\npollinterval = 1\n' "$NUT_CONFPATH/rack1.dev" >"$NUT_CONFPATH/ups.conf"
echo "LISTEN 127.0.0.1 $UPS_PORT" >"$NUT_CONFPATH/upsd.conf"
printf '[admin]\npassword = x\nactions = SET\n' >"$NUT_CONFPATH/upsd.users"
chmod 640 "$NUT_CONFPATH"/*
/lib/nut/dummy-ups -a rack1 -u root >nut.log 2>&1 || skip "dummy-ups does not start: $(tail -n 1 nut.log)"
undo "kill \$(cat '$NUT_STATEPATH/dummy-ups-rack1.pid')"
/lib/nut/upsd -u root >>nut.log 2>&1 || skip "upsd does not start: $(tail -n 1 nut.log)"
undo "kill \$(cat '$NUT_STATEPATH/upsd.pid')"
power() {
    run upsrw -s battery.runtime="$2" -u admin -p x "rack1@127.0.0.1:$UPS_PORT"
    run upsrw -s ups.status="$1" -u admin -p x "rack1@127.0.0.1:$UPS_PORT"
}
await 20 "upsd answers" upsc "rack1@127.0.0.1:$UPS_PORT" ups.status

cat >"$DIR/main" <<'END'
export FOREBAY_STATE_DIR=/run/forebay
word() { tr ' ' '\n' </proc/cmdline | sed -n "s/^$1=//p"; }
mkdir /log
case $(word kind) in
ups) log="dram:64M,backup=/dev/vdb,ups=rack1@10.0.2.2:$(word ups),memory=/log/memory" ;;
pmem) log="dram:64M,protection=pmem,memory=/log/memory" ;;
none) log="dram:64M,backup=/dev/vdb,protection=none,memory=/log/memory" ;;
esac
if [ "$(word kind)" = pmem ]; then
    [ "$(word boot)" = 2 ] || mkfs.ext4 -q -F -b 4096 /dev/pmem0 || exit
    mount -t ext4 -o dax=always /dev/pmem0 /log || exit
    echo "guest: $(grep pmem0 /proc/mounts)"
else
    mount -t tmpfs none /log
fi
if [ "$(word boot)" = 1 ]; then
    # A txg_timeout that is long keeps what was answered in the log.
    forebay pool create -f -o txg_timeout=30 p /dev/vda log "$log" || exit
    forebay volume create -V 32M p/v || exit
elif [ "$(word accept)" = 1 ]; then
    forebay pool import -m -d /dev p && echo "guest: imported without the log"
else
    forebay pool import -d /dev -d /log p || echo "guest: import refused"
fi
(while sleep 0.5; do
    forebay pool status p --json 2>/dev/null | tr ',{' '\n\n' | sed -n 's/^ *"state": *"\([A-Z_]*\)"/\1/p' |
        grep -E 'ARMED|SAVED|UNPROTECTED|RESTOR' | head -n 1 | sed 's/^/guest: log /'
done) &
forebay serve p --listen tcp:0.0.0.0:10809 --plaintext 2>&1 | cat
END
cp "$FOREBAY" "$DIR/forebay"
make_guest "$DIR/forebay" "$(command -v mkfs.ext4)"
eval "set -- $(guest_command)"
COMMAND=("$@" -netdev "user,id=n,hostfwd=tcp:127.0.0.1:$PORT-:10809" -device virtio-net-pci,netdev=n)
# boot KIND NUMBER [ACCEPT]
boot() {
    : >"$DIR/console"
    local words="kind=$1 boot=$2 accept=${3:-0} ups=$UPS_PORT" file
    # A part of the guest's memory is persistent: all of it is a file that outlives the guest.
    [ "$1" != pmem ] || words="$words memmap=256M!512M nokaslr"
    local -a command=("${COMMAND[@]/panic=-1/panic=-1 $words}")
    for file in "$1".vda "$1".vdb; do
        command+=(-drive "file=$DIR/$file,if=virtio,format=raw,cache=writeback")
    done
    [ "$1" != pmem ] || command+=(-machine pc,memory-backend=ram
        -object "memory-backend-file,id=ram,share=on,mem-path=$DIR/ram,size=1024M")
    "${command[@]}" >"$DIR/qemu.out" 2>&1 &
    GUEST_PID=$!
    disown $GUEST_PID
    undo "kill -9 $GUEST_PID"
}
says() { grep -q "$1" "$DIR/console"; }
told() { await 240 "the guest says '$1': $(tail -n 3 "$DIR/console" "$DIR/qemu.out")" says "$1"; }
# The newest word counts: a log is SAVED before it is armed, too.
log_is() { [ "$(grep -ao 'guest: log [A-Z_]*' "$DIR/console" | tail -n 1)" = "guest: log $1" ]; }
log_becomes() { await 240 "the log is $1: $(tail -n 3 "$DIR/console" "$DIR/qemu.out")" log_is "$1"; }
cut() { kill -9 $GUEST_PID && ended $GUEST_PID "the guest"; }
answers() { [ "$(counted_in "$DIR/answered")" -ge "$1" ]; }
writes() {
    rm -f "$DIR/answered"
    python3 "$HERE/ledger.py" write "127.0.0.1:$PORT" p/v "$DIR/ledger.$1" --seconds 600 --depth 4 --span 16777216 \
        --expect-end --told "$DIR/answered" >"$DIR/writer.$1" 2>&1 &
    WRITER=$!
    disown $WRITER
    undo "kill -9 $WRITER"
    await 120 "writes are answered: $(cat "$DIR/writer.$1" 2>/dev/null)" answers 300
}
checked() { run python3 "$HERE/ledger.py" check "127.0.0.1:$PORT" p/v "$DIR/ledger.$1"; }

for kind in ups pmem none; do
    truncate -s 512M $kind.vda
    truncate -s 96M $kind.vdb
done
truncate -s 1024M ram

say "the supply warns: saved in time"
boot ups 1
log_becomes ARMED
writes ups
power "OB" 5
log_becomes SAVED
kept=$(counted_in "$DIR/answered")
await 120 "writes go on to the backup device" answers $((kept + 50))
cut
ended "$WRITER" "the writer"
power "OL" 600
boot ups 2
told "ready: "
checked ups
cut

say "persistent memory: no warning needed"
boot pmem 1
told "guest: /dev/pmem0 .*dax"
log_becomes ARMED
writes pmem
cut
ended "$WRITER" "the writer"
boot pmem 2
told "ready: "
! says "import refused" || fail "$(cat "$DIR/console")"
checked pmem
cut

say "no protection: lost, and told"
boot none 1
log_becomes UNPROTECTED
writes none
cut
ended "$WRITER" "the writer"
boot none 2
told "import refused"
says "SAVE_FAILED" || fail "it does not say what is lost: $(cat "$DIR/console")"
! says "ready: " || fail "the pool is served without what was answered"
cut
boot none 2 1
told "imported without the log"
told "ready: "
cut
pass "saved in time, kept by persistent memory with MAP_SYNC, and lost with a word where nothing protects it"
