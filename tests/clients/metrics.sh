#!/usr/bin/env bash
# Metrics in a real Prometheus: what promtool thinks of them, whether figures are those of 'pool list', whether every
# query of the dashboard has an answer, and alerts that fire: a device that fails, a pool that is nearly full, a log
# without its mirror, a scrub that is overdue, and reads that are slower than a day ago. Clients that are slow or no
# clients of HTTP do no harm.
. "$(dirname "$0")/lib.sh"
need prometheus promtool jq python3 nbdcopy cc
begin
PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
OWN=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
files 96M d0 d1
files 64M l0 l1 k0
run "$FOREBAY" pool create -o txg_timeout=1 p mirror "$DIR"/d{0,1} log mirror "$DIR"/l{0,1} cache "$DIR/k0"
run "$FOREBAY" volume create -V 32M p/v
serve p --metrics "127.0.0.1:$PORT"
random_file data $((32 << 20))
# get URL [HEADER]
get() {
    python3 - "$@" <<'END'
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers=dict(h.split(": ", 1) for h in sys.argv[2:]))
sys.stdout.write(urllib.request.urlopen(request, timeout=20).read().decode())
END
}
page() { get "http://127.0.0.1:$PORT/metrics" "$@"; }

page >"$DIR/plain"
promtool check metrics <"$DIR/plain" >"$DIR/.out" 2>&1 || fail "promtool: $(cat "$DIR/.out")"
[ ! -s "$DIR/.out" ] || fail "promtool remarks: $(cat "$DIR/.out")"
page "Accept: application/openmetrics-text" | tail -1 | grep -qx '# EOF' || fail "no OpenMetrics"
names=$(grep -o '^# TYPE [a-z_]*' "$DIR/plain" | cut -d' ' -f3)
for name in $names; do
    grep -q "\`$name\`" "$HERE/../../docs/metrics.md" || fail "docs/metrics.md lacks $name"
done

(cd "$HERE/../../monitoring" && promtool test rules forebay.rules.test.yml) >"$DIR/.out" 2>&1 ||
    fail "the rules: $(cat "$DIR/.out")"

say "clients that are none"
python3 - "$PORT" <<'END'
import os, socket, sys
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(40)]
for at, one in enumerate(held):
    try:
        one.sendall([b"GET /metr", b"\0" * 20000, b"\r\n\r\n", os.urandom(500)][at % 4])
    except OSError:
        pass
END
await 20 "scrapes are answered again" page

say "in Prometheus"
# The rules as they are, but without the minutes that they wait.
sed '/^ *for:/d' "$HERE/../../monitoring/forebay.rules.yml" >"$DIR/rules.yml"
cat >"$DIR/prometheus.yml" <<END
global: {scrape_interval: 200ms, evaluation_interval: 200ms}
rule_files: [$DIR/rules.yml]
scrape_configs:
  - job_name: forebay
    static_configs: [{targets: ["127.0.0.1:$PORT"]}]
END
# A day of reads that took a microsecond each, until an hour ago: what reads are compared with.
python3 - "127.0.0.1:$PORT" >"$DIR/past" <<'END'
import sys, time
labels = '{pool="p",op="read",instance="%s",job="forebay"}' % sys.argv[1]
now, family = int(time.time()), "forebay_pool_operation_duration_seconds"
print("# TYPE %s summary" % family)
for name, step in (("count", 30000), ("sum", 0.03)):
    for at in range(300):
        print("%s_%s%s %s %d" % (family, name, labels, step * at, now - 27 * 3600 + at * 300))
print("# EOF")
END
run promtool tsdb create-blocks-from openmetrics "$DIR/past" "$DIR/tsdb"
prometheus --config.file="$DIR/prometheus.yml" --storage.tsdb.path="$DIR/tsdb" \
    --web.listen-address="127.0.0.1:$OWN" >"$DIR/prometheus.log" 2>&1 &
PROMETHEUS=$!
disown $PROMETHEUS
undo "kill -9 $PROMETHEUS"
ask() { get "http://127.0.0.1:$OWN/api/v1/query?query=$(jq -rn --arg q "$1" '$q | @uri')"; }
answers() { ask "$1" | jq -e '.status == "success" and (.data.result | length) > 0' >/dev/null; }
value() { ask "$1" | jq -r '.data.result[0].value[1]'; }
fires() { get "http://127.0.0.1:$OWN/api/v1/alerts" | jq -e --arg n "$1" \
    '.data.alerts[] | select(.labels.alertname == $n and .state == "firing")' >/dev/null; }
await 30 "Prometheus scrapes the server" answers 'up == 1'
fires ForebayDeviceFailed && fail "an alert fires for a pool that is well"
run nbdcopy --flush data "$(uri p/v)"
run nbdcopy "$(uri p/v)" "$DIR/copy"
run "$FOREBAY" pool sync p
is_there() { [ "$(value 'forebay_pool_allocated_bytes{pool="p"}')" = $((32 << 20)) ]; }
await 20 "what was written is in Prometheus" is_there
listed=$("$FOREBAY" pool list --json | jq '.pools[0].size_bytes')
[ "$(value 'forebay_pool_size_bytes{pool="p"}')" = "$listed" ] || fail "pool list says $listed"
at_least() { [ "$(value 'forebay_pool_operation_bytes_total{op="write"}')" -ge $((32 << 20)) ]; }
await 20 "writes are counted" at_least
jq -r '.panels[].targets[].expr' "$HERE/../../monitoring/grafana-dashboard.json" |
    sed 's/\$__rate_interval/30s/g; s/\$pool/.*/g' >"$DIR/queries"
queries=0
while read -r query; do
    await 20 "the dashboard's query has an answer: $query" answers "$query"
    queries=$((queries + 1))
done <"$DIR/queries"

say "alerts"
run "$FOREBAY" volume create -s -V 256M p/filler
full=$("$FOREBAY" pool list --json | jq '.pools[0] | (.size_bytes * 0.95 | floor) - .alloc_bytes')
head -c "$full" </dev/urandom >"$DIR/much"
run nbdcopy --flush "$DIR/much" "$(uri p/filler)"
run "$FOREBAY" pool sync p
await 30 "the alert of a nearly full pool fires" fires ForebayPoolNearlyFull
fires ForebayDeviceFailed && fail "the alert of a failed device fires too early"
mv "$DIR/l1" "$DIR/l1.away"
stop_server
serve p --metrics "127.0.0.1:$PORT"
await 30 "the alert of a log without its mirror fires" fires ForebayLogUnprotected
await 30 "the alert of a failed device fires" fires ForebayDeviceFailed
stop_server

say "a scrub of forty days ago, and reads that are slower than they were"
fires ForebayScrubOverdue && fail "the alert of a scrub fires too early"
run cc -O1 -shared -fPIC -o "$RUN/clock.so" "$HERE/clock.c"
python3 -c 'import struct, sys; open(sys.argv[1], "wb").write(struct.pack("=q", -40 * 86400))' "$RUN/ahead"
printf '#!/bin/sh\nCLOCK_CONTROL="%s" LD_PRELOAD="%s" exec "%s" "$@"\n' "$RUN/ahead" "$RUN/clock.so" "$FOREBAY" >"$RUN/past"
chmod +x "$RUN/past"
run "$RUN/past" pool scrub -w p
serve p --metrics "127.0.0.1:$PORT"
await 30 "the alert of a scrub that is overdue fires" fires ForebayScrubOverdue
# Enough for one a second over ten minutes.
run nbdcopy --request-size=4096 "$(uri p/v)" "$DIR/copy"
await 30 "the alert of reads that are slower than a day ago fires" fires ForebayLatencyHigh
say "native histograms"
NATIVE=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
prometheus --config.file="$DIR/prometheus.yml" --storage.tsdb.path="$DIR/native" --enable-feature=native-histograms \
    --web.listen-address="127.0.0.1:$NATIVE" >"$DIR/native.log" 2>&1 &
PROMETHEUS=$!
disown $PROMETHEUS
undo "kill -9 $PROMETHEUS"
run nbdcopy "$(uri p/v)" "$DIR/copy"
OWN=$NATIVE
# Without buckets of their own names, a histogram is one sample: its quantiles come from the native ones.
await 30 "quantiles of a native histogram" answers \
    'histogram_quantile(0.5, forebay_pool_operation_duration_seconds{op="read"}) > 0'
await 30 "the same of a volume" answers \
    'histogram_quantile(0.5, forebay_volume_operation_duration_seconds{op="read", volume="v"}) > 0'
answers 'forebay_client_operation_bytes_total{class="local", op="read"} > 0' || fail "reads of local clients are not counted"
answers 'histogram_quantile(0.5, forebay_client_operation_duration_seconds{class="local", op="read"}) > 0' ||
    fail "the times of local clients are missing"
answers 'forebay_client_operation_bytes_total{class!="local"}' && fail "clients of another class were seen"
answers 'forebay_pool_operation_duration_seconds_bucket' && fail "Prometheus took the classic buckets"
same() { python3 -c "import sys; a, b = map(float, sys.argv[1:]); sys.exit(not abs(a - b) <= 0.15 * b)" "$@"; }
p50=$(value 'histogram_quantile(0.5, forebay_pool_operation_duration_seconds{op="read"})')
said=$("$FOREBAY" pool stats --json p | jq '.pools[0].read_latency.p50_us / 1e6')
same "$p50" "$said" || fail "the median is $p50 s in Prometheus and $said s in 'pool stats'"
for family in pool_operation_bytes_total device_state pool_size_bytes; do
    answers "forebay_$family" || fail "forebay_$family is missing in the protocol buffers"
done
refuse 'another server has it' "$FOREBAY" serve p --metrics "127.0.0.1:$OWN" --listen "unix:$RUN/other"
alive
stop_server
pass "$(echo "$names" | wc -l) metrics, $queries queries of the dashboard, five alerts"
