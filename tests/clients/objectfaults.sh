#!/usr/bin/env bash
# A pool in an object store whose gateway is killed, slowed and full under PostgreSQL and under fio, which
# check what they wrote; one object that the store cannot handle; what all that costs.
. "$(dirname "$0")/lib.sh"
need jq python3 versitygw fio stdbuf fuser pgbench psql mkfs.ext4 runuser
fio --enghelp 2>/dev/null | grep -w nbd >/dev/null || skip "this fio has no nbd engine"
need_mounts
PG=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
[ -n "$PG" ] && [ -x "$PG/postgres" ] || skip "the PostgreSQL server is not installed"
id postgres >/dev/null 2>&1 || skip "there is no user postgres"
begin
files 512M l0 l1
mkdir -p "$DIR/gw" "$DIR/meta"
export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=testsecret AWS_REGION=us-east-1
PORT=$(own_port)
RELAY=$((PORT + 1))
export AWS_ENDPOINT_URL=http://127.0.0.1:$RELAY
answers() { await 20 "port $1 answers" bash -c "</dev/tcp/127.0.0.1/$1"; }
gateway() {
    versitygw --access test --secret testsecret --port "127.0.0.1:$PORT" --quiet posix \
        --sidecar "$DIR/meta" "$DIR/gw" >>"$DIR/gateway.log" 2>&1 &
    GATEWAY=$!
    disown $GATEWAY
    undo "kill -9 $GATEWAY"
    answers "$PORT"
}
# The store lies in a file system of its own, which a test can fill.
run mount -t tmpfs -o size=900M none "$DIR/gw"
undo "umount -l '$DIR/gw'"
mkdir "$DIR/gw/pools"
gateway
python3 "$HERE/s3relay.py" "$RELAY" "$PORT" "$DIR/rules" >"$DIR/relay.log" 2>&1 &
disown $!
undo "kill -9 $!"
answers "$RELAY"
rules() { printf '%s\n' "$@" >"$DIR/rules.new" && mv "$DIR/rules.new" "$DIR/rules"; }
rules ""
run "$FOREBAY" pool create -o txg_timeout=1 p objects "s3://pools/tank?size=8G" log mirror "$DIR/l0" "$DIR/l1"
run "$FOREBAY" volume create -V 64M p/busy
run "$FOREBAY" volume create -V 400M -s p/pg
run "$FOREBAY" volume create -V 96M -s p/fio
serve p
store() { "$FOREBAY" pool status --json p | jq -e ".. | objects | .objects? | objects | $1"; }
status() { "$FOREBAY" pool status "$@" p; }
condition() { [ "$("$FOREBAY" pool status --json p | jq -r '.pools[0].condition')" = "$1" ]; }
said() { "$FOREBAY" pool status --json p | jq -r '.pools[0].status'; }
told() { "$FOREBAY" pool events --json p | jq -es "any(.event == \"$1\")"; }

say "an idle pool asks for little: a heartbeat each five seconds"
run "$FOREBAY" pool sync p
sleep 5
before=$(store .puts) begun=$(date +%s)
sleep 20
more=$(($(store .puts) - before)) most=$((($(date +%s) - begun) / 5 + 3))
[ "$more" -le "$most" ] || fail "$more puts of an idle pool, not $most"

say "one object fails while others are stored: it is named"
rules "fail /data/"
load 1
await 60 "the condition" condition store_request_fails
said | grep -q "put of data/.*InternalError" || fail "it does not say which: $(status)"
status | grep -q "without the store writes go on for .* at the present rate" || fail "$(status)"
await 10 "the event store-request-fails" told store-request-fails
rules ""
await 60 "it is well again" condition ok
loaded "an object that failed"

say "the store is away: for how long the log lasts, and a warning when that is short"
run "$FOREBAY" pool set outage_warning=3600 p
load 2
kill -9 "$GATEWAY"
await 60 "the condition" condition store_silent
said | grep -q "has not answered for .* Durable writes go on for" || fail "$(status)"
await 20 "the event store-silent" told store-silent
await 20 "a warning" told outage-reserve-low
"$FOREBAY" pool status --json p | jq -e '.pools[0].outage_reserve | .log_bytes_per_sec > 0 and .secs != null' >/dev/null ||
    fail "no reserve: $("$FOREBAY" pool status --json p)"
gateway
await 60 "the event store-answers" told store-answers
loaded "an outage"
await 60 "it is well again" condition ok
run "$FOREBAY" pool set outage_warning=60 p

say "what it costs"
run "$FOREBAY" pool set store_prices=put=1,get=2,month=3,egress=4 p
"$FOREBAY" pool list --json | jq -e '.pools[0].store | .cost.requests > .requests / 1000 - 1 and .cost.stored_a_month > 0' \
    >/dev/null || fail "$("$FOREBAY" pool list --json)"
"$FOREBAY" pool list -o name,objects,stored,requests,retries,cost,monthly | grep -q '^p .*[0-9]\.[0-9][0-9][0-9][0-9]' ||
    fail "$("$FOREBAY" pool list -o name,objects,stored,requests,retries,cost,monthly)"
status -v | grep -q "cost by store_prices" || fail "$(status -v)"
refuse "$FOREBAY" pool set store_prices=cheap p

# harm: kills, slows and fills the gateway in turn until the file "stop" is there.
harm() {
    local fill
    while :; do
        kill -9 "$GATEWAY"
        sleep 2
        gateway
        sleep 1
        rules "slow 0.3"
        sleep 3
        rules "full"
        sleep 2
        rules ""
        # A file system without room, as the gateway itself meets it.
        fill=$(($(df --output=avail -B1M "$DIR/gw" | tail -n 1) + 1))
        dd if=/dev/zero of="$DIR/gw/filler" bs=1M count="$fill" 2>/dev/null
        sleep 2
        rm -f "$DIR/gw/filler"
        echo >>"$DIR/harmed"
        sleep 1
        [ ! -e "$DIR/stop" ] || return 0
    done
}
harmed() { [ "$(wc -l <"$DIR/harmed" 2>/dev/null || echo 0)" -ge "$1" ]; }
begin_harm() {
    rm -f "$DIR/stop" "$DIR/harmed"
    harm >"$DIR/harm.log" 2>&1 &
    HARM=$!
    undo "kill $HARM"
}
end_harm() {
    await 120 "the gateway was killed, slowed and filled" harmed "$1"
    touch "$DIR/stop"
    wait $HARM
    GATEWAY=$(pgrep -f "versitygw .*127.0.0.1:$PORT ")
    undo "kill -9 $GATEWAY"
}

say "fio, which checks what it wrote, while the gateway is killed, slowed and full"
begin_harm
for round in 1 2 3; do
    run fio --name=verify --ioengine=nbd --uri="$(uri p/fio)" --verify=crc32c --verify_fatal=1 --do_verify=1 \
        --verify_state_save=0 --rw=randwrite --bsrange=4k-64k --iodepth=16 --size=96M --fsync=32 --randseed=$round
done
end_harm 1
scrub_clean p

say "PostgreSQL, meanwhile"
attach p/pg
run mkfs.ext4 -q -F -E lazy_itable_init=0 "$LOOP"
mount_volume
mkdir "$RUN/mnt/data" "$RUN/sock"
chown postgres "$RUN/mnt/data" "$RUN/sock"
as_postgres() { env -C / runuser -u postgres -- env PGHOST="$RUN/sock" PGDATABASE=postgres "$@"; }
start_postgres() {
    as_postgres "$PG/pg_ctl" -D "$RUN/mnt/data" -w -t 60 -l "$RUN/sock/log" -o \
        "-c listen_addresses= -c unix_socket_directories=$RUN/sock -c max_wal_size=64MB
         -c shared_buffers=32MB -c checkpoint_timeout=30s" start >"$DIR/.out" 2>&1 ||
        fail "PostgreSQL does not start: $(cat "$DIR/.out"; tail -n 20 "$RUN/sock/log")"
    PGPID=$(head -n 1 "$RUN/mnt/data/postmaster.pid")
    undo "kill -9 $PGPID"
}
run as_postgres "$PG/initdb" -D "$RUN/mnt/data" -A trust -k --no-instructions
start_postgres
run as_postgres pgbench -i -q -s 2
begin_harm
as_postgres pgbench -n -c 4 -T "$(longer 30 120)" >"$DIR/pgbench.out" 2>&1 || fail "pgbench: $(tail -n 5 "$DIR/pgbench.out")"
end_harm 1
grep -q 'number of failed transactions: 0' "$DIR/pgbench.out" || fail "transactions failed: $(cat "$DIR/pgbench.out")"
# The books: what the branches, tellers and accounts hold is what the history says.
balanced() {
    as_postgres psql -Atc "select (select sum(abalance) from pgbench_accounts) = (select coalesce(sum(delta), 0) from pgbench_history)
        and (select sum(bbalance) from pgbench_branches) = (select coalesce(sum(delta), 0) from pgbench_history)
        and (select sum(tbalance) from pgbench_tellers) = (select coalesce(sum(delta), 0) from pgbench_history)"
}
[ "$(balanced)" = t ] || fail "the books do not balance"
run as_postgres "$PG/pg_ctl" -D "$RUN/mnt/data" -w -m fast stop
run as_postgres "$PG/pg_checksums" --check -D "$RUN/mnt/data"
done=$(grep -o 'actually processed: [0-9]*' "$DIR/pgbench.out" | grep -o '[0-9]*$')
detach
scrub_clean p
alive
stop_server
pass "an object that failed, outages and a full store under fio and under $done transactions"
