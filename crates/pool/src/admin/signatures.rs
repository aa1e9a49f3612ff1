//! Signatures of other software on a device: file systems, volume managers, partition tables. A
//! pool takes such a device only with force.

use forebay_device::{Device, IoBuf};

/// A signature: where it lies, its bytes, and what it means.
struct Mark {
    at: usize,
    bytes: &'static [u8],
    what: &'static str,
}

const fn mark(at: usize, bytes: &'static [u8], what: &'static str) -> Mark {
    Mark { at, bytes, what }
}

/// Bytes that are searched for signatures.
const LOOKED_AT: usize = 128 << 10;

const MARKS: &[Mark] = &[
    mark(0, b"XFSB", "an XFS file system"),
    mark(0x438, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    mark(0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    mark(3, b"NTFS    ", "an NTFS file system"),
    mark(3, b"EXFAT   ", "an exFAT file system"),
    mark(82, b"FAT32   ", "a FAT file system"),
    mark(0, b"hsqs", "a squashfs file system"),
    mark(0x400, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    mark(0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    mark(512, b"LABELONE", "a physical volume of LVM"),
    mark(4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of an MD array"),
    mark(4086, b"SWAPSPACE2", "swap space"),
    mark(0, b"QFI\xfb", "a qcow2 image"),
    mark(512, b"EFI PART", "a GPT partition table"),
];

/// The foreign content that the device seems to have, in words.
pub(crate) async fn content_of(device: &Device) -> Option<&'static str> {
    let head = device.read(0, IoBuf::zeroed(LOOKED_AT)).await.ok()?;
    let found = MARKS.iter().find(|m| head[m.at..].starts_with(m.bytes)).map(|m| m.what);
    found.or_else(|| member_of_zfs(&head).or_else(|| partitions(&head)))
}

/// ZFS keeps the names and values of its configuration from 16 KiB on.
fn member_of_zfs(head: &[u8]) -> Option<&'static str> {
    const LIST: &[u8] = b"pool_guid";
    let area = &head[16 << 10..LOOKED_AT];
    let found = area.windows(LIST.len()).any(|w| w == LIST);
    found.then_some("a member of a ZFS pool")
}

/// An MBR: its signature, and an entry with a type and a length.
fn partitions(head: &[u8]) -> Option<&'static str> {
    let signed = head[510..512] == [0x55, 0xaa];
    let entries = head[446..510].chunks(16);
    let sane = |e: &[u8]| matches!(e[0], 0 | 0x80) && (e[4] == 0 || e[12..16] != [0; 4]);
    let used = |e: &[u8]| e[4] != 0;
    let is_table = signed && entries.clone().all(sane) && entries.clone().any(used);
    is_table.then_some("a partition table")
}

#[cfg(test)]
mod tests;
