#!/usr/bin/env bash
# Pools that earlier programs made and that were killed under writes (formats 5 to 8,
# tests/clients/golden): they are imported with all that was answered, stay as they are, and have
# snapshots, de-duplication, compression and promotion of clones once they are upgraded.
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
[ "$(version)" = 9 ] || fail "the upgrade changed nothing"
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

# Format 8: block i as (i, 1) with a noise of its own, compressed, then @s and a clone c of v, every
# 7th of v again as (i, 2), 128 blocks trimmed from 64 on, every 5th of c again as (i, 4), and, after
# the last commit, with FUA, every 11th of v from 1 on as (i, 3). Of w, with dedup too, (i mod 128, 1).
say "a pool with compressed volumes"
cat >expect8.py <<'P'
import hashlib, struct, sys
image, version = open(sys.argv[1], "rb").read(512 * 4096), sys.argv[2]
def block(i, n):
    head = struct.pack("<QQ", i, n)
    noise = hashlib.sha256(head).digest() + hashlib.sha256(head + b"+").digest()
    return (head + noise).ljust(1024, b"f").ljust(4096, bytes([i % 251]))
for i in range(512):
    right = block(i, 1)
    if version == "w":
        right = block(i % 128, 1)
    elif version == "c" and i % 5 == 0:
        right = block(i, 4)
    elif version == "v" and i % 11 == 1:
        right = block(i, 3)
    elif version == "v" and 64 <= i < 192:
        right = bytes(4096)
    elif version == "v" and i % 7 == 0:
        right = block(i, 2)
    assert image[i * 4096:(i + 1) * 4096] == right, "block %d" % i
P
rm -f d0 d1 l0
xz -dc "$HERE/golden/pool-v8.tar.xz" | tar -xf - || fail "the kept pool cannot be unpacked"
run "$FOREBAY" pool import -f -d "$DIR" old8
version8() { "$FOREBAY" pool get -H -o value version old8; }
hold_as_before8() {
    for kept in "$@"; do
        run nbdcopy "$(uri "old8/$kept")" image
        run python3 expect8.py image "${kept/c@/v@}"
    done
}
serve old8
hold_as_before8 v v@s c w
refuse "$FOREBAY" volume promote old8/c
stop_server
[ "$(version8)" = 8 ] || fail "the import changed the format"
run "$FOREBAY" pool upgrade old8
serve old8
hold_as_before8 v v@s c w
run "$FOREBAY" volume promote old8/c
hold_as_before8 v c@s c w
kill_server
serve old8
hold_as_before8 v c@s c w
run "$FOREBAY" volume destroy old8/v
hold_as_before8 c@s c w
scrub_clean old8
stop_server
pass
