#!/usr/bin/env bash
# Images go in and come out unchanged: qemu-img convert, compare, qcow2 sources, nbdcopy, nbdinfo.
. "$(dirname "$0")/lib.sh"
need qemu-img nbdcopy nbdinfo jq
begin
files 256M d0 d1 d2 d3
files 64M l0 l1
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2,3} log mirror "$DIR"/l{0,1}
run "$FOREBAY" volume create -V 128M p/raw
run "$FOREBAY" volume create -V 128M p/qcow
run "$FOREBAY" volume create -V 128M p/copy
serve p

say "qemu-img convert and compare"
random_file part 32M
truncate -s 128M image
# Data, a hole, data that does not end at a block, a hole to the end.
dd if=part of=image bs=1M conv=notrunc status=none
dd if=part of=image bs=1M seek=50 count=20 conv=notrunc status=none
dd if=part of=image bs=512 seek=150001 count=777 conv=notrunc status=none
run qemu-img convert -n -f raw -O raw image "$(uri p/raw)"
run qemu-img compare -f raw -F raw image "$(uri p/raw)"
run qemu-img convert -f raw -O qcow2 image image.qcow2
run qemu-img convert -n -W -m 16 -f qcow2 -O raw image.qcow2 "$(uri p/qcow)"
run qemu-img compare -f raw -F raw "$(uri p/raw)" "$(uri p/qcow)"
run qemu-img convert -f raw -O qcow2 "$(uri p/raw)" out.qcow2
run qemu-img compare -f raw -F qcow2 image out.qcow2

say "nbdcopy"
run nbdcopy image "$(uri p/copy)"
run nbdcopy "$(uri p/copy)" back
[ "$(hash_of image)" = "$(hash_of back)" ] || fail "nbdcopy brought back something else"
run nbdcopy --connections=4 --requests=64 "$(uri p/copy)" "$(uri p/raw)"

say "after an orderly stop and an import"
stop_server
serve p
[ "$(hash_of image)" = "$(hash_volume p/copy)" ] || fail "changed by a stop and an import"
[ "$(hash_of image)" = "$(hash_volume p/raw)" ] || fail "changed by a stop and an import"

say "nbdinfo"
nbdinfo --json "$(uri p/raw)" >info.json 2>info.err || fail "nbdinfo: $(cat info.err)"
jq -e '.exports[0] | .["export-size"] == 134217728 and .is_read_only == false
    and .can_flush and .can_fua and .can_multi_conn and .can_trim and .can_zero
    and .can_fast_zero and .can_df and .can_cache
    and .block_size_minimum == 512 and .block_size_preferred == 4096
    and .block_size_maximum == 33554432
    and (.contexts | index("base:allocation") != null)' info.json >/dev/null ||
    fail "nbdinfo: $(cat info.json)"
[ "$(nbdinfo --json --list "nbd+unix:///?socket=$SOCKET" | jq '.exports | length')" = 3 ] ||
    fail "the list has not three exports"
if nbdinfo "$(uri p/none)" >/dev/null 2>&1; then fail "an export that is not there was opened"; fi
alive
scrub_clean p
pass "256 MiB in and out of qemu-img and nbdcopy, and over an import"
