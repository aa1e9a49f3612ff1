#!/usr/bin/env bash
# Limits of volumes as fio sees them: no more than was set, at once for a load that runs, and after an import.
. "$(dirname "$0")/lib.sh"
need fio python3
fio --enghelp 2>/dev/null | grep -w nbd >/dev/null || skip "this fio has no nbd engine"
begin
files 256M d0
files 64M l0
run "$FOREBAY" pool create p "$DIR"/d0 log "$DIR"/l0
run "$FOREBAY" volume create -V 64M p/v
run "$FOREBAY" volume create -V 64M p/w
serve p

# rates VOLUME SECONDS OPTION...: requests and bytes a second, rounded down.
rates() {
    local volume=$1 seconds=$2
    shift 2
    fio --name=load --ioengine=nbd --uri="$(uri "$volume")" --size=64M --time_based --runtime="$seconds" \
        --output-format=json --output="$DIR/load.json" "$@" >/dev/null || fail "fio: $*"
    [ -s "$DIR/load.json" ] || fail "fio gave no figures"
    python3 - "$DIR/load.json" <<'END'
import json, sys

job = json.load(open(sys.argv[1]))["jobs"][0]
seconds = max(job["read"]["runtime"], job["write"]["runtime"]) / 1000
sums = {key: job["read"][key] + job["write"][key] for key in ("total_ios", "io_bytes")}
print(int(sums["total_ios"] / seconds), int(sums["io_bytes"] / seconds))
END
}
small="--rw=randrw --bs=4k --iodepth=32"
large="--rw=randrw --bs=256k --iodepth=8"
# at_most WHAT GOT LIMIT: what was made up for within 10 ms, and fio's own end, come on top.
at_most() {
    [ "$2" -le $(($3 * 105 / 100)) ] || fail "$1: $2 a second, and the limit is $3"
    [ "$2" -ge $(($3 / 2)) ] || fail "$1: only $2 a second, and the limit is $3"
}

say "requests"
run "$FOREBAY" volume set iops_limit=500 p/v
read -r requests _ < <(rates p/v 4 $small)
at_most "requests" "$requests" 500
say "bytes"
run "$FOREBAY" volume set iops_limit=none p/v
run "$FOREBAY" volume set bandwidth_limit=8M p/v
read -r _ bytes < <(rates p/v 4 $large)
at_most "bytes" "$bytes" $((8 << 20))
say "another volume is not limited, and a limit holds after an import"
read -r requests _ < <(rates p/w 2 $small)
[ "$requests" -gt 1000 ] || fail "the other volume did $requests requests a second"
stop_server
serve p
read -r _ bytes < <(rates p/v 4 $large)
at_most "bytes after an import" "$bytes" $((8 << 20))
say "a load that runs notices"
rates p/v 4 $large >"$DIR/during" &
during=$!
sleep 2
run "$FOREBAY" volume set bandwidth_limit=none p/v
wait $during || fail "fio failed when the limit was lifted"
read -r _ bytes <"$DIR/during"
[ "$bytes" -gt $((16 << 20)) ] || fail "$bytes bytes a second, although the limit was lifted"
say "values"
for bad in iops_limit=0 iops_limit=1.5 bandwidth_limit=auto bandwidth_limit=4K weight=0 weight=1001; do
    refuse "$FOREBAY" volume set $bad p/v
done
run "$FOREBAY" volume set weight=300 p/v
"$FOREBAY" volume get weight p/v | grep -w 300 >/dev/null || fail "volume get does not show the weight"
alive
pass "500 requests, 8 MiB, lifted"
