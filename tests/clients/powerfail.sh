#!/usr/bin/env bash
# The power-cut rig on whole machines: a guest under qemu writes records, its witness is out here, and a
# cut is kill -9 of qemu and of the drive. The drive's volatile cache lies in nbdkit's memory, so that
# the kill loses it; what only lies in a host's page cache would survive.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/guest.lib.sh"
need python3 nbdkit
nbdkit --filter=cache null --dump-plugin >/dev/null 2>&1 || skip "nbdkit has no cache filter"
begin
need_guest
FOREBAY_WITNESS_KEY=$(head -c 24 /dev/urandom | base64 | tr '+/' 'ab')
export FOREBAY_WITNESS_KEY
cat >"$DIR/main" <<'END'
word() { tr ' ' '\n' </proc/cmdline | sed -n "s/^$1=//p"; }
[ "$(word cache)" = through ] && echo 'write through' >/sys/block/vda/queue/write_cache
echo "guest: vda is $(cat /sys/block/vda/queue/write_cache)"
FOREBAY_WITNESS_KEY=$(word key)
export FOREBAY_WITNESS_KEY
forebay qualify power-cut /dev/vda --witness 10.0.2.2:$(word port) --destroy /dev/vda \
    --span 8M --cuts $(word cuts) 2>&1
END
: >"$DIR/console"
cp "$FOREBAY" "$DIR/forebay"
make_guest "$DIR/forebay"
PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

# power_off: the drive first, so that qemu has no time to tell it anything.
power_off() {
    if [ -n "$DRIVE" ]; then
        kill -9 "$DRIVE" 2>/dev/null
        ended "$DRIVE" "the drive, killed,"
    fi
    kill -9 "$GUEST_PID" 2>/dev/null
    ended "$GUEST_PID" "the guest, killed,"
}

# rig NAME EXPECTED CUTS FILTER-CACHE QEMU-CACHE GUEST-CACHE [OPTION]: cycles until so many cuts are
# verified. FILTER-CACHE "file" is no nbdkit at all: the guest's disk is a file of this host. OPTION is
# one of qemu's virtio-blk.
rig() {
    local name=$1 expected=$2 cuts=$3 filter=$4 qemu=$5 guest=$6 option=${7:+,$7} round=0 damaged
    rm -f disk "$name.fbw"
    truncate -s 16M disk
    : >"$DIR/$name.log"
    "$FOREBAY" witness "$name.fbw" --listen "127.0.0.1:$PORT" --cut-after 0-2 \
        --cut-command "touch $DIR/cut" >"$DIR/$name.log" 2>&1 &
    WITNESS=$!
    disown $WITNESS
    undo "kill $WITNESS"
    await 20 "the witness listens" grep -q listening "$DIR/$name.log"
    while :; do
        round=$((round + 1))
        rm -f "$DIR/cut" nbd.sock
        DRIVE=
        local drive="file=$DIR/disk,format=raw"
        if [ "$filter" != file ]; then
            nbdkit -f -U "$DIR/nbd.sock" --filter=cache file "$DIR/disk" cache="$filter" \
                >"$DIR/nbdkit.out" 2>&1 &
            DRIVE=$!
            disown $DRIVE
            undo "kill -9 $DRIVE"
            await 20 "the drive listens" test -S "$DIR/nbd.sock"
            drive="file.driver=nbd,file.server.type=unix,file.server.path=$DIR/nbd.sock,format=raw"
        fi
        : >"$DIR/console"
        eval "set -- $(guest_command)"
        set -- "${@/panic=-1/panic=-1 port=$PORT key=$FOREBAY_WITNESS_KEY cuts=$cuts cache=$guest}" \
            -drive "if=none,id=d,$drive,cache=$qemu" -device "virtio-blk-pci,drive=d$option" \
            -netdev user,id=n -device virtio-net-pci,netdev=n
        "$@" >"$DIR/qemu.out" 2>&1 &
        GUEST_PID=$!
        disown $GUEST_PID
        undo "kill -9 $GUEST_PID"
        cut_or_done() { [ -e "$DIR/cut" ] || grep -q 'guest: the end' "$DIR/console"; }
        await 120 "the guest is cut or has finished: $DIR/console" cut_or_done
        [ -e "$DIR/cut" ] || break
        power_off
        [ $round -le $((cuts + 1)) ] || fail "$name: more cycles than cuts"
    done
    power_off
    kill $WITNESS
    ended $WITNESS "the witness"
    run "$FOREBAY" witness "$name.fbw" --show
    say "$name: $(grep -h 'power cuts' "$DIR/.out" | tr -s ' '); $(grep 'vda is' "$DIR/console" | tr -d '\r')"
    damaged=$("$FOREBAY" witness "$name.fbw" --show --json |
        python3 -c 'import json, sys; t = json.load(sys.stdin)["tally"]; print(t["cuts"], t["failed"])')
    case $expected in
    honest) [ "$damaged" = "$cuts 0" ] || fail "$name: $damaged: $(cat "$DIR/$name.log")" ;;
    lies) [ "$damaged" = "$cuts $cuts" ] || fail "$name: $damaged: $(cat "$DIR/$name.log")" ;;
    esac
}

CUTS=$(longer 2 10)
# A drive with a volatile cache, whose flushes reach the media.
rig honest honest "$CUTS" writeback writeback back
# The guest is told that there is no volatile cache, and qemu makes each write durable itself.
rig through honest "$CUTS" writeback writeback back write-cache=off
# The drive ignores flushes.
rig drive lies "$CUTS" unsafe writeback back
# The drive is honest, and the guest's kernel was told wrongly that there is no volatile cache.
rig kernel lies "$CUTS" writeback writeback through
# A file under cache=unsafe: flushes are dropped, but the host's page cache outlives the kill. A kill
# cannot show this lie; only the host's own power could. (Over NBD, qemu sends flushes all the same.)
rig pagecache honest "$CUTS" file unsafe back
pass "2 lies were found, and no false alarm was raised"
