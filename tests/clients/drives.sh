#!/usr/bin/env bash
# Health of the drives below a pool, by a smartctl that prints what real ones printed: in 'pool status -v', its JSON,
# the metrics and the web page's data; a drive without counters, one that warns, and a tool that hangs.
. "$(dirname "$0")/lib.sh"
need python3 jq losetup
need_root "loop devices"
begin
RECORDED=$ROOT/crates/qualify/src/tests/health
files 96M d0 d1
files 64M l0
for name in d0 d1 l0; do
    LOOP=$(losetup -f --show "$DIR/$name" 2>"$DIR/.out") || skip "losetup: $(cat "$DIR/.out")"
    undo "free_loop $LOOP '$DIR/$name'"
    eval "$name=$LOOP"
done
# shellcheck disable=SC2154 # eval has set them
[ -e "/sys/block/${d0##*/}" ] || skip "loop devices are not in /sys"
mkdir bin
cat >bin/smartctl <<END
#!/bin/sh
for last; do :; done
echo "\$last" >>"$DIR/asked"
case \$last in
$d0) cat "$RECORDED/smartctl-nvme.json" ;;
$d1) cat "$DIR/second.json" ;;
$l0) exec sleep 1000 ;;
*) echo '{"smartctl":{"messages":[{"string":"no such drive","severity":"error"}],"exit_status":2}}'; exit 2 ;;
esac
END
chmod +x bin/smartctl
jq '.model_name = "INTEL SSDSC2BA200G3"' "$RECORDED/smartctl-sata.json" >second.json
export PATH=$DIR/bin:$PATH
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
get() { python3 -c 'import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())' "$1"; }
METRICS=$(port) WEB=$(port)
run "$FOREBAY" pool create -f p mirror "$d0" "$d1"
run "$FOREBAY" volume create -V 32M p/v

say "without a server the command reads the drives"
run "$FOREBAY" pool status -v p
grep -q '50 °C, 0% of its rated life used' "$DIR/.out" || fail "the first drive: $(cat "$DIR/.out")"
grep -q '26 °C, 7% of its rated life used, worn out in 22.7 years' "$DIR/.out" || fail "the second: $(cat "$DIR/.out")"

MODEL='a day (of its life): 22.7 years by its counter, [0-9.]* years by the flash model of intel-s3700-200gb'
grep -q "$MODEL" "$DIR/.out" || fail "the second drive's model: $(cat "$DIR/.out")"
grep -c 'flash model' "$DIR/.out" | grep -qx 1 || fail "a drive without a model: $(cat "$DIR/.out")"

say "a server reads them, and waits for none"
run "$FOREBAY" pool add -f p log "$l0"
: >asked
serve p --metrics "127.0.0.1:$METRICS" --web "127.0.0.1:$WEB"
# The last drive's tool hangs until its time is over: the server serves meanwhile.
run timeout 20 "$FOREBAY" pool sync p
drives() { pool_json status p | jq -e "$1" >/dev/null; }
await 60 "the readings" drives ".pools[0].drives[\"$d0\"].health.temperature_c == 50"
await 20 "the second reading" drives ".pools[0].drives[\"$d1\"].health.used_percent == 7"
# A minute of a tool that hangs is for long runs.
[ "$LONG" = 0 ] || await 60 "a drive whose tool hangs" drives ".pools[0].drives[\"$l0\"].unknown == \"smartctl does not answer\""
drives ".pools[0].drives[\"$d1\"].forecast | .model.device == \"intel-s3700-200gb\" and .model.years_by_cycles > 0 and
    .write_amplification == 1.25 and .measured_hours == null" || fail "$(pool_json status p)"
get "http://127.0.0.1:$METRICS/metrics" >page
grep -qx "forebay_device_temperature_celsius{pool=\"p\",device=\"$d0\"} 50" page || fail "$(grep device_temp page)"
grep -qx "forebay_device_wear_ratio{pool=\"p\",device=\"$d1\"} 0.07" page || fail "$(grep wear page)"
for by in counter cycles rating; do
    value=$(sed -n "s/^forebay_device_life_left_seconds{pool=\"p\",device=\"${d1//\//\\/}\",by=\"$by\"} //p" page)
    years=$(pool_json status p | jq ".pools[0].drives[\"$d1\"].forecast | {counter: .years_by_counter,
        cycles: .model.years_by_cycles, rating: .model.years_by_rating}.$by")
    jq -en "($value / 86400 / 365.25 / $years - 1) | fabs < 1e-3" >/dev/null || fail "$by: $value s, $years years"
done
get "http://127.0.0.1:$WEB/state.json" | jq -e ".pools[0].view.status.drives[\"$d1\"].health.temperature_c == 26" >/dev/null ||
    fail "the page is not told"
[ "$(grep -c "^$d0\$" asked)" = 1 ] || fail "a drive was read $(grep -c "^$d0\$" asked) times at once"
alive
stop_server
jq '.ata_device_statistics.pages = [] | .temperature.current = 71 | .nvme_smart_health_information_log = {critical_warning: 4}' \
    "$RECORDED/smartctl-sata.json" >second.json
run "$FOREBAY" pool remove p "$l0"
run "$FOREBAY" pool status -v p
grep -q 'WARNS OF A FAILURE (0x04), 71 °C' "$DIR/.out" || fail "a drive that warns: $(cat "$DIR/.out")"
pass "two drives, one without an answer, one that warns"
