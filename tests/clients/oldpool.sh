#!/usr/bin/env bash
# Pools that earlier programs made and that were killed under writes (formats 5, 6 and 7,
# tests/clients/golden): they are imported with all that was answered, stay as they are, and have
# snapshots, de-duplication and compression once they are upgraded.
. "$(dirname "$0")/lib.sh"
need nbdcopy xz tar python3
begin
# What was written: block i as (i, 1), every 7th again as (i, 2), 512 blocks trimmed from 64 on, and,
# after the last commit, with FUA, every 11th from 1 on as (i, 3).
cat >expect.py <<'P'
import struct, sys
image = open(sys.argv[1], "rb").read(2048 * 4096)
for i in range(2048):
    words = (i, 3 if i % 11 == 1 else 2 if i % 7 == 0 else 1)
    if 64 <= i < 576 and i % 11 != 1:
        words = (0, 0)
    found = struct.unpack_from("<QQ", image, i * 4096)
    assert found == words, "block %d holds %r and not %r" % (i, found, words)
P
xz -dc "$HERE/golden/pool-v5.tar.xz" | tar -xf - || fail "the kept pool cannot be unpacked"
run "$FOREBAY" pool import -f -d "$DIR" old
version() { "$FOREBAY" pool get -H -o value version old; }
[ "$(version)" = 5 ] || fail "the import changed the format"
serve old
run nbdcopy "$(uri old/v)" image
run python3 expect.py image
refuse "$FOREBAY" volume snapshot old/v@a
stop_server
[ "$(version)" = 5 ] || fail "serving changed the format"

say "upgrade"
run "$FOREBAY" pool upgrade old
[ "$(version)" = 8 ] || fail "the upgrade changed nothing"
serve old
run "$FOREBAY" volume snapshot old/v@a
random_file other 32M
run nbdcopy --flush other "$(uri old/v)"
kill_server
serve old
run nbdcopy "$(uri old/v@a)" image
run python3 expect.py image
[ "$(hash_volume old/v)" = "$(hash_of other)" ] || fail "the volume lost what was written"
scrub_clean old
stop_server

# Format 6: block i as (i, 1), then @s and a clone c of it, every 7th again as (i, 2), 512 blocks
# trimmed from 64 on, and, after the last commit, with FUA, every 11th from 1 on as (i, 3).
say "a pool with snapshots"
cat >expect6.py <<'P'
import struct, sys
image, version = open(sys.argv[1], "rb").read(2048 * 4096), sys.argv[2]
for i in range(2048):
    words = (i, 3 if i % 11 == 1 else 2 if i % 7 == 0 else 1)
    if 64 <= i < 576 and i % 11 != 1:
        words = (0, 0)
    if version != "v":
        words = (i, 1)
    found = struct.unpack_from("<QQ", image, i * 4096)
    assert found == words, "block %d holds %r and not %r" % (i, found, words)
P
xz -dc "$HERE/golden/pool-v6.tar.xz" | tar -xf - || fail "the kept pool cannot be unpacked"
run "$FOREBAY" pool import -f -d "$DIR" old6
version6() { "$FOREBAY" pool get -H -o value version old6; }
hold_as_before() {
    for kept in v v@s c; do
        run nbdcopy "$(uri "old6/$kept")" image
        run python3 expect6.py image $kept
    done
}
serve old6
hold_as_before
refuse "$FOREBAY" volume set dedup=on old6/v
stop_server
[ "$(version6)" = 6 ] || fail "the import changed the format"
run "$FOREBAY" pool upgrade old6
serve old6
hold_as_before
run "$FOREBAY" volume set dedup=on old6/v
random_file other 8M
run nbdcopy --flush other "$(uri old6/v)"
run nbdcopy --flush other "$(uri old6/c)"
kill_server
serve old6
[ "$(hash_volume old6/v)" = "$(hash_of other)" ] || fail "the volume lost what was written"
run nbdcopy "$(uri old6/v@s)" image
run python3 expect6.py image v@s
scrub_clean old6
stop_server

# Format 7, both volumes with dedup: block i as (i mod 512, 1), then @s and a clone c of v, every 7th of
# v again as (i, 2), 512 blocks trimmed from 64 on, and, after the last commit, with FUA, every 11th from
# 1 on as (i, 3).
say "a pool with de-duplicated volumes"
cat >expect7.py <<'P'
import struct, sys
image, version = open(sys.argv[1], "rb").read(2048 * 4096), sys.argv[2]
for i in range(2048):
    words = (i % 512, 1)
    if version == "v":
        if i % 11 == 1:
            words = (i, 3)
        elif 64 <= i < 576:
            words = (0, 0)
        elif i % 7 == 0:
            words = (i, 2)
    found = struct.unpack_from("<QQ", image, i * 4096)
    assert found == words, "block %d holds %r and not %r" % (i, found, words)
P
rm -f d0 d1 l0
xz -dc "$HERE/golden/pool-v7.tar.xz" | tar -xf - || fail "the kept pool cannot be unpacked"
run "$FOREBAY" pool import -f -d "$DIR" old7
version7() { "$FOREBAY" pool get -H -o value version old7; }
hold_as_before7() {
    for kept in v v@s c w; do
        run nbdcopy "$(uri "old7/$kept")" image
        run python3 expect7.py image $kept
    done
}
serve old7
hold_as_before7
refuse "$FOREBAY" volume set compression=lz4 old7/v
stop_server
[ "$(version7)" = 7 ] || fail "the import changed the format"
run "$FOREBAY" pool upgrade old7
serve old7
hold_as_before7
run "$FOREBAY" volume set compression=zstd old7/v
yes "what is compressed after the upgrade" | head -c 8M >other
run nbdcopy --flush other "$(uri old7/v)"
kill_server
serve old7
[ "$(hash_volume old7/v)" = "$(hash_of other)" ] || fail "the volume lost what was written"
run nbdcopy "$(uri old7/v@s)" image
run python3 expect7.py image v@s
scrub_clean old7
stop_server
pass
