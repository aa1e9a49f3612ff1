#!/usr/bin/env bash
# fio checks what it wrote: crc32c of every block, mixed sizes and depths, 32 connections.
. "$(dirname "$0")/lib.sh"
need fio
fio --enghelp 2>/dev/null | grep -w nbd >/dev/null || skip "this fio has no nbd engine"
begin
files 256M d0 d1 d2 d3 d4
files 64M l0 l1
run "$FOREBAY" pool create p raidz2 "$DIR"/d{0,1,2,3,4} log mirror "$DIR"/l{0,1}
run "$FOREBAY" volume create -V 256M p/v
serve p
verify() {
    say "$1"
    shift
    run fio --name=verify --ioengine=nbd --uri="$(uri p/v)" --verify=crc32c --verify_fatal=1 \
        --do_verify=1 --verify_state_save=0 "$@"
}
verify "4K random, depth 32" --rw=randwrite --bs=4k --iodepth=32 --size=256M \
    --io_size="$(longer 96M 1G)" --random_generator=tausworthe64 --norandommap=0
verify "mixed sizes from 512 bytes" --rw=randwrite --bsrange=512-256k --bs_unaligned=0 \
    --blockalign=512 --iodepth=16 --size=128M --verify_interval=512 --serialize_overlap=1
verify "sequential 1M with flushes" --rw=write --bs=1m --iodepth=8 --size=256M --fsync=16
say "32 connections"
run fio --name=many --ioengine=nbd --uri="$(uri p/v)" --numjobs=32 --offset_increment=8M --size=8M \
    --rw=randwrite --bs=4k --iodepth=4 --fsync=8 --verify=crc32c --verify_fatal=1 --do_verify=1 \
    --verify_state_save=0 --group_reporting
alive
scrub_clean p
pass "crc32c of $(longer 700 1700) MB"
