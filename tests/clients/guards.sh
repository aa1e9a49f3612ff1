#!/usr/bin/env bash
# What the device lab must not overwrite: mounted, partitioned and otherwise used devices, and files that are
# the disks of others. Each is refused by every command that writes, and has its bytes afterwards (root).
. "$(dirname "$0")/lib.sh"
need losetup mount mkfs.ext4 mkswap qemu-nbd python3
need_root "loop devices and mounts"
begin
TRACE=$DIR/one.csv
printf 'time_ns,device,op,start_sector,sectors,flags\n0,0,W,0,8,\n1000,0,W,8,8,\n' >"$TRACE"
# refuse WHAT WORDS DEVICE [SAYING]: each command that writes refuses, although the device's name was repeated.
refuse() {
    local what=$1 device=$3 said
    local commands=(
        "qualify $device --destroy $device --shrink 1000 --plain --out $DIR/no.fbq"
        "qualify power-cut $device --witness 127.0.0.1:$WITNESS --destroy $device"
        "trace replay --overwrite --speed max $TRACE $device"
    )
    for words in "${commands[@]}"; do
        # shellcheck disable=SC2086 # the words are separate
        said=$("$FOREBAY" $words 2>&1) && fail "$what is overwritten: forebay $words"
        grep -q "$2" <<<"$said" || fail "$what is refused for another reason: forebay $words: $said"
    done
}
# holds WHAT DEVICE: without the name once more, the refusal says what is there.
holds() {
    local said
    said=$("$FOREBAY" qualify "$2" --shrink 1000 2>&1) && fail "$2 is overwritten, and has $1"
    grep -q "which holds $1" <<<"$said" || fail "the refusal does not name $1: $said"
}
attach() {
    LOOP=$(losetup --find --show "$@" "$DIR/disk" 2>/dev/null) || skip "there is no loop device"
    undo "free_loop $LOOP '$DIR/disk'"
}
"$FOREBAY" witness --listen 127.0.0.1:0 w.fbw >witness.log 2>&1 &
undo "kill $!"
await 20 "the witness listens" grep -q listening witness.log
WITNESS=$(grep -o '127.0.0.1:[0-9]*' witness.log | head -n 1)
WITNESS=${WITNESS#*:}

truncate -s 64M disk
mkfs.ext4 -q disk
mkdir mounted
attach
mount "$LOOP" mounted || skip "loop devices cannot be mounted"
undo "umount $DIR/mounted"
echo kept >mounted/file
sync
sum=$(sha256sum <"$LOOP")
refuse "a mounted device" "in use by another process" "$LOOP"
refuse "the file of a loop device" "is attached to it" "$DIR/disk"
ln disk other
refuse "a second name of it" "is attached to it" "$DIR/other"
[ "$sum" = "$(sha256sum <"$LOOP")" ] || fail "a mounted device has other bytes than before"
run "$FOREBAY" qualify "$LOOP" --read-only --shrink 100 --plain --out read.fbq
[ "$sum" = "$(sha256sum <"$LOOP")" ] || fail "--read-only has written"
umount mounted
holds "an ext2, ext3 or ext4 file system" "$LOOP"
free_loop "$LOOP" "$DIR/disk"

# A table with one partition, which is mounted: the whole disk is not free.
truncate -s 0 disk
truncate -s 64M disk
python3 - <<'END'
import struct
entry = struct.pack("<B3sB3sII", 0, b"\0" * 3, 0x83, b"\0" * 3, 2048, 129024)
with open("disk", "r+b") as file:
    file.seek(446)
    file.write(entry)
    file.seek(510)
    file.write(b"\x55\xaa")
END
attach --partscan
holds "a partition table" "$LOOP"
if [ -b "${LOOP}p1" ] && mkfs.ext4 -q "${LOOP}p1" && mount "${LOOP}p1" mounted; then
    refuse "a disk with a mounted partition" "in use by another process" "$LOOP"
    umount mounted
else
    say "SKIPPED: there is no partition of $LOOP"
fi
free_loop "$LOOP" "$DIR/disk"

truncate -s 0 disk
truncate -s 64M disk
attach
mkswap "$LOOP" >/dev/null
holds "swap space" "$LOOP"
if swapon "$LOOP" 2>/dev/null; then
    refuse "swap space in use" "in use by another process" "$LOOP"
    swapoff "$LOOP"
fi
free_loop "$LOOP" "$DIR/disk"

# An image that a virtual machine uses; QEMU locks parts of it.
qemu-nbd -f raw -t -k "$DIR/qemu.sock" --pid-file "$DIR/qemu.pid" disk &
undo "kill \$(cat '$DIR/qemu.pid')"
await 20 "QEMU has the image open" test -S qemu.sock
refuse "an image of QEMU" "has locked it" "$DIR/disk"

truncate -s 96M d0
run "$FOREBAY" pool create q "$DIR/d0"
run "$FOREBAY" pool export q
holds "a member of the Forebay pool q" "$DIR/d0"
pass "what is in use is refused, and keeps its bytes; what is held is named"
