#!/usr/bin/env bash
# PostgreSQL on ext4 on a volume: kill -9 of the server under pgbench; every commit that a client
# saw is there after recovery, and the books balance.
. "$(dirname "$0")/lib.sh"
need stdbuf fuser pgbench psql mkfs.ext4 e2fsck runuser python3
need_mounts
PG=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
[ -n "$PG" ] && [ -x "$PG/postgres" ] || skip "the PostgreSQL server is not installed"
id postgres >/dev/null 2>&1 || skip "there is no user postgres"
begin
files 512M d0 d1 d2 d3
files 128M l0 l1
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2,3} log mirror "$DIR"/l{0,1}
run "$FOREBAY" volume create -V 700M -s p/pg
serve p
attach p/pg
run mkfs.ext4 -q -F -E lazy_itable_init=0 "$LOOP"
mount_volume
mkdir "$RUN/mnt/data" "$RUN/sock"
chown postgres "$RUN/mnt/data" "$RUN/sock"
as_postgres() { env -C / runuser -u postgres -- env PGHOST="$RUN/sock" PGDATABASE=postgres "$@"; }
start_postgres() {
    as_postgres "$PG/pg_ctl" -D "$RUN/mnt/data" -w -t 60 -l "$RUN/sock/log" -o \
        "-c listen_addresses= -c unix_socket_directories=$RUN/sock -c max_wal_size=96MB
         -c shared_buffers=32MB -c checkpoint_timeout=30s" start >"$DIR/.out" 2>&1 ||
        fail "PostgreSQL does not start: $(cat "$DIR/.out"; tail -n 20 "$RUN/sock/log")"
    PGPID=$(head -n 1 "$RUN/mnt/data/postmaster.pid")
    undo "kill -9 $PGPID"
}
kill_postgres() {
    # With its children, as a power cut would: one that waits for another's lock does not end by itself,
    # and holds files of the mount.
    # shellcheck disable=SC2046 # a list
    kill -9 "$PGPID" $(pgrep -P "$PGPID") 2>/dev/null
    ended "$PGPID" "PostgreSQL, killed,"
    await 60 "its children are gone" sh -c "! fuser -sm '$RUN/mnt'"
}
run as_postgres "$PG/initdb" -D "$RUN/mnt/data" -A trust -k --no-instructions
start_postgres
run as_postgres pgbench -i -q -s 2
run as_postgres psql -qc 'create table ledger (client int, number int, primary key (client, number))'

# The outside ledger: psql sessions that note a number only after the commit was answered.
cat >"$DIR/feed.sh" <<'P'
client=$1
i=$2
# Ends with psql, also where SIGPIPE is ignored.
while i=$((i + 1)); do
    printf 'insert into ledger values (%s, %s);\n\\echo %s\n' "$client" "$i" "$i" || exit
done
P
commits() { cat "$DIR"/commits.* 2>/dev/null | wc -l; }
has_commits() { [ "$(commits)" -ge "$1" ]; }
ROUNDS=$(longer 2 6)
seen=0
for round in $(seq "$ROUNDS"); do
    writers=()
    for client in 1 2 3 4; do
        base=$((round * 1000000))
        (sh "$DIR/feed.sh" "$client" "$base" 2>/dev/null |
            as_postgres stdbuf -oL psql -X -q -v ON_ERROR_STOP=1 >>"$DIR/commits.$client" 2>"$DIR/psql.$client.err") &
        writers+=($!)
    done
    (as_postgres pgbench -n -c 4 -T 600 >"$DIR/pgbench.out" 2>&1) &
    writers+=($!)
    before=$(commits)
    await 180 "commits: $(cat "$DIR"/psql.*.err 2>/dev/null)" has_commits $((before + $(longer 200 2000)))
    alive
    kill_server
    # It must fail on its disk first, as after a cut: what hangs in the kernel cannot be killed.
    await 60 "the disk is gone" sh -c "! dd if=$LOOP of=/dev/null bs=4096 count=1 iflag=direct"
    kill_postgres
    end_of "${writers[@]}"
    detach
    serve p
    attach p/pg
    mount_volume
    run umount "$RUN/mnt"
    run e2fsck -fn "$LOOP"
    mount_volume
    rm -f "$RUN/mnt/data/postmaster.pid" "$RUN"/sock/.s.*
    start_postgres
    for client in 1 2 3 4; do
        as_postgres psql -XAtqc "select number from ledger where client = $client order by 1" \
            >"$DIR/there.$client" || fail "the ledger cannot be read"
        lost=$(sort "$DIR/commits.$client" | comm -23 - <(sort "$DIR/there.$client") | wc -l)
        [ "$lost" = 0 ] || fail "round $round: $lost commits that client $client saw are lost"
    done
    seen=$(cat "$DIR"/commits.* | wc -l)
    [ "$seen" -gt $((round * 20)) ] || fail "too few commits ($seen) to show anything: $(cat "$DIR"/psql.*.err "$DIR/pgbench.out")"
    run as_postgres psql -XAtqc "do \$\$ declare a bigint; t bigint; b bigint; h bigint; begin
        select sum(abalance) into a from pgbench_accounts; select sum(tbalance) into t from pgbench_tellers;
        select sum(bbalance) into b from pgbench_branches; select coalesce(sum(delta), 0) into h from pgbench_history;
        if a <> t or t <> b or b <> h then raise exception 'the books differ: % % % %', a, t, b, h; end if; end \$\$"
    history=$(as_postgres psql -XAtqc 'select count(*) from pgbench_history')
    say "kill $round: $seen commits seen and there; pgbench history $history"
done
run as_postgres "$PG/pg_amcheck" -d postgres --install-missing
run as_postgres "$PG/pg_ctl" -D "$RUN/mnt/data" -m fast -w stop
# A process that has ended for pg_ctl may still have to leave the file system.
await 10 "PostgreSQL has left the file system" umount "$RUN/mnt"
detach
alive
scrub_clean p
pass "$seen commits seen by clients over $ROUNDS kills, all there"
