#!/usr/bin/env bash
# Promotion of clones while clients write to the clone and to its volume: both go on, every version
# holds what it held, also after kill -9, and the old volume can go. Compressed, de-duplicated and
# plain; streams and dirty bitmaps go on across it.
. "$(dirname "$0")/lib.sh"
need nbdcopy nbdinfo jq fio
need_nbd_shell
begin
files 256M d0 d1 d2
files 64M l0
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2} log "$DIR/l0"
serve p

hashes_of() { for version in "$@"; do hash_volume "p/$version"; done; }
for how in "" "-o compression=zstd" "-o dedup=on"; do
    say "promotion with ${how:-no property}"
    # shellcheck disable=SC2086
    run "$FOREBAY" volume create -s -V 32M $how p/v
    random_file first 24M
    run nbdcopy --flush first "$(uri p/v)"
    run "$FOREBAY" volume snapshot p/v@one
    random_file second 4M
    run nbdcopy --flush second "$(uri p/v)"
    run "$FOREBAY" volume snapshot p/v@two
    # shellcheck disable=SC2086
    run "$FOREBAY" volume clone $how p/v@two p/c
    random_file third 2M
    run nbdcopy --flush third "$(uri p/c)"
    run nbdcopy --flush first "$(uri p/v)"
    run "$FOREBAY" volume snapshot p/v@three p/c@four
    before=$(hashes_of v@one v@two v@three c@four v c)
    refuse "$FOREBAY" volume destroy -r p/v
    refuse "$FOREBAY" volume promote p/v
    run "$FOREBAY" volume promote p/c
    [ "$(hashes_of c@one c@two v@three c@four v c)" = "$before" ] || fail "a version changed"
    [ "$("$FOREBAY" volume get -H -o value origin p/v)" = p/c@two ] || fail "the volume is no clone"
    [ "$("$FOREBAY" volume get -H -o value origin p/c)" = - ] || fail "the clone is one still"
    refuse "$FOREBAY" volume promote p/c
    kill_server
    serve p
    [ "$(hashes_of c@one c@two v@three c@four v c)" = "$before" ] || fail "kill -9 changed a version"
    nbdinfo --map=qemu:dirty-bitmap:two --json "$(uri p/c@four)" >map.json || fail "there is no dirty bitmap"
    [ "$(jq '[.[] | select(.type == 1) | .length] | add' map.json)" = $((2 << 20)) ] ||
        fail "other blocks changed between @two and @four than 2 MiB: $(cat map.json)"
    run "$FOREBAY" volume destroy -r p/v
    [ "$(hashes_of c@one c@two c@four c)" = "$(printf '%s\n' $before | sed '3d;5d')" ] ||
        fail "the clone lost what it had from the volume"
    run "$FOREBAY" volume rollback -r p/c@one
    [ "$(hash_volume p/c)" = "$(hash_volume p/c@one)" ] || fail "the rollback did not lead back"
    run "$FOREBAY" volume destroy -r p/c
done

say "clients do not notice"
run "$FOREBAY" volume create -s -V 32M p/v
run nbdcopy --flush first "$(uri p/v)"
run "$FOREBAY" volume snapshot p/v@s
run "$FOREBAY" volume clone p/v@s p/c
is_written() { [ "$("$FOREBAY" volume get -H -o value written "p/$1")" != 0B ]; }
for volume in v c; do
    fio --name="$volume" --ioengine=nbd --uri="$(uri "p/$volume")" --rw=randwrite --bs=4k --iodepth=8 \
        --size=32M --io_size=1G --time_based --runtime="$(longer 6 30)" --verify=crc32c --do_verify=0 \
        --verify_state_save=0 --randseed=7 >"fio.$volume" 2>&1 &
    writers+=($!)
    undo "kill $! 2>/dev/null"
done
kept=$(hash_volume p/v@s)
await 20 "fio writes to the volume" is_written v
await 20 "fio writes to the clone" is_written c
turns=0
while kill -0 "${writers[0]}" 2>/dev/null && [ $turns -lt 40 ]; do
    run "$FOREBAY" volume promote p/c
    run "$FOREBAY" volume promote p/v
    turns=$((turns + 1))
done
for pid in "${writers[@]}"; do wait "$pid" || fail "a client noticed: $(tail -3 fio.v fio.c)"; done
[ $turns -gt 2 ] || fail "only $turns turns while clients wrote"
[ "$(hash_volume p/v@s)" = "$kept" ] || fail "the snapshot changed"

say "a client of a snapshot keeps its name from changing"
cat >open.py <<'P'
import os, subprocess
h.connect_uri(os.environ["URI"])
promote = [os.environ["FOREBAY"], "volume", "promote", "p/c"]
refused = subprocess.run(promote, capture_output=True, text=True)
assert refused.returncode != 0 and "-f" in refused.stderr, refused
h.pread(4096, 0)
subprocess.run([*promote[:3], "-f", *promote[3:]], check=True)
try:
    h.pread(4096, 0)
    print("still connected")
except nbd.Error:
    print("disconnected")
P
how=$(URI=$(uri p/v@s) FOREBAY=$FOREBAY nbd_shell -c 'exec(open("open.py").read())') || fail "open.py: $how"
[ "$how" = disconnected ] || fail "a client of a snapshot under its old name: $how"

say "increments go on"
run "$FOREBAY" volume snapshot p/c@t
"$FOREBAY" volume send p/c@s | run "$FOREBAY" volume receive p/w
"$FOREBAY" volume send -i @s p/c@t | run "$FOREBAY" volume receive p/w
[ "$(hash_volume p/w@t)" = "$(hash_volume p/c@t)" ] || fail "the increment leads elsewhere"
scrub_clean p
no_errors p
stop_server
pass
