#!/usr/bin/env bash
# The power of a whole machine fails: a guest with its own kernel runs the server on virtio drives whose
# writes and flushes are recorded outside; cuts of that record are imported here.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/guest.lib.sh"
need python3 qemu-storage-daemon
begin
need_guest
cat >"$DIR/main" <<'END'
export FOREBAY_STATE_DIR=/run/forebay
L=$(cat /proc/cmdline | tr ' ' '\n' | sed -n 's/^layout=//p' | tr ',' ' ')
set -- /dev/vda /dev/vdb /dev/vdc /dev/vdd /dev/vde /dev/vdf
W=
for w in $L; do
    case $w in
    [0-9]*) for i in $(seq $w); do W="$W $1"; shift; done ;;
    *) W="$W $w" ;;
    esac
done
forebay pool create -f -o txg_timeout=1 p $W || exit
forebay volume create -V 4M p/a
forebay volume create -V 4M p/b
forebay volume create -V 8M p/c
forebay serve p --listen tcp:0.0.0.0:10809 --plaintext 2>&1 | cat
END
: >"$DIR/console"
cp "$FOREBAY" "$DIR/forebay"
make_guest "$DIR/forebay"
mkdir "$DIR/w" "$RUN/w"
eval "set -- $(guest_command)"
say "$(basename "$KERNEL")"
python3 "$HERE/powercut.py" "$FOREBAY" "$DIR/w" "$RUN/w" --layout "raidz1 3 log mirror 2" \
    --seconds "$(longer 8 30)" --cuts "$(longer 24 300)" --seed "${SEED:-1}" \
    --guest "$DIR/console" -- "$@" >"$DIR/powercut.out" 2>&1 ||
    fail "$(cat "$DIR/powercut.out"; tail -n 5 "$DIR/console")"
say "$(tail -n 1 "$DIR/powercut.out")"
pass "no image broke a promise"
