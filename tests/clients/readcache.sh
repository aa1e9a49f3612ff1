#!/usr/bin/env bash
# The read cache of a real server: what was copied once is copied from memory, also while it is written over;
# memory that others need is given back to the system; and the cache grows again.
. "$(dirname "$0")/lib.sh"
need nbdcopy nbdinfo prlimit python3 cmp
begin
# The server may take 800 MiB: the cache would be 200 MiB, of which 100 MiB are asked for.
printf '#!/bin/sh\nexec prlimit --data=%d "%s" "$@"\n' $((800 << 20)) "$FOREBAY" >"$RUN/bounded"
chmod +x "$RUN/bounded"
BARE=$FOREBAY
FOREBAY=$RUN/bounded
files 512M d0 d1
files 64M l0
run "$FOREBAY" pool create p mirror "$DIR"/d{0,1} log "$DIR/l0"
run "$FOREBAY" volume create -V 100M p/v
random_file data 104857600
serve p
run nbdcopy --flush data "$(uri p/v)"
# What is still dirty is read from there, and is not in the cache.
run "$FOREBAY" pool sync p

# figure PATH: a number of 'pool stats', such as cache hits.
figure() {
    "$BARE" pool stats p --json | python3 -c '
import json, sys
at = json.load(sys.stdin)["pools"][0]
for name in sys.argv[1:]: at = at[name]
print(sum(d["reads"] for d in at.values()) if sys.argv[1] == "devices" else at)' "$@"
}
# copy: the volume must be what was written.
copy() {
    rm -f "$DIR/copy"
    run nbdcopy "$(uri p/v)" "$DIR/copy"
    cmp -s "$DIR/data" "$DIR/copy" || fail "$1: the copy differs"
}

[ "$(figure cache size_bytes)" -eq $((200 << 20)) ] ||
    fail "a quarter of 800 MiB is expected, and cache_size is $(figure cache size_bytes)"
copy "the first copy"
[ "$(figure cache used_bytes)" -ge $((95 << 20)) ] || fail "the cache has $(figure cache used_bytes) bytes"
before=$(figure devices)
copy "the copy from memory"
after=$(figure devices)
[ $((after - before)) -lt 50 ] || fail "$((after - before)) reads of the devices, and all was in memory"

say "written over"
random_file data 104857600
run nbdcopy --flush data "$(uri p/v)"
copy "after a write"
run "$BARE" pool sync p
copy "after a commit"
copy "and once more"

say "memory is short"
has=$(awk '/^RssAnon/ { print $2 }' "/proc/$SERVER/status")
# 96 MiB more than it has: less than what the cache leaves free.
run prlimit --pid "$SERVER" --data=$(((has + 96 * 1024) * 1024)):
given=0
for _ in $(seq 100); do
    now=$(awk '/^RssAnon/ { print $2 }' "/proc/$SERVER/status")
    given=$((has - now))
    [ "$given" -ge $((20 * 1024)) ] && break
    sleep 0.1
done
[ "$given" -ge $((20 * 1024)) ] || fail "only $given KiB of $has were given back"
[ "$(figure cache limit_bytes)" -lt $((100 << 20)) ] || fail "the cache's limit is $(figure cache limit_bytes)"
copy "with little memory"
run prlimit --pid "$SERVER" --data=$((800 << 20)):
for _ in $(seq 100); do
    [ "$(figure cache limit_bytes)" -ge $((100 << 20)) ] && break
    sleep 0.1
done
[ "$(figure cache limit_bytes)" -ge $((100 << 20)) ] || fail "the cache stays at $(figure cache limit_bytes)"
copy "with memory again"
scrub_clean p
stop_server
pass "100 MiB from memory in $((after - before)) reads of devices; $((given / 1024)) MiB given back"
