//! Structures on media: decode, encode, decode.

use std::collections::BTreeMap;

use forebay_format::Encoder;
use forebay_format::cache_device::{CacheHeader, CacheShape, RegionFooter, SnapshotHeader};
use forebay_format::checksum::{crc64, crc64_of_parts};
use forebay_format::config::PoolConfig;
use forebay_format::dram::{BackupHeader, DramKind, MemoryHeader};
use forebay_format::fingerprints::Fingerprints;
use forebay_format::objects::{Checkpoint, Entry};
use forebay_format::footer::{Footer, FooterPlace};
use forebay_format::journal::{self, FrameHeader, FrameKind, SegmentRecord};
use forebay_format::label::{ConfigEnvelope, Heartbeat, LogMark};
use forebay_format::log_frame::{self, LogState};
use forebay_format::map_record::{Change, Delta, LeafImage, decode_leaves, encode_leaves};
use forebay_format::packed::{MAX_UNIT_BYTES, PackedRef, unit_in};
use forebay_format::snapshot::SnapshotRecord;
use forebay_format::superblock::Superblock;
use forebay_units::{BLOCK_LEN, Lba, SegmentId, VolumeId};

/// `bytes`, and again with the checksum `sum` makes at `at`, when there is room for one.
fn both(bytes: &[u8], at: usize, sum: impl Fn(&[u8]) -> u64, check: impl Fn(&[u8])) {
    check(bytes);
    if bytes.len() >= at + 8 {
        let mut sealed = bytes.to_vec();
        sealed[at..at + 8].fill(0);
        let sum = sum(&sealed);
        sealed[at..at + 8].copy_from_slice(&sum.to_le_bytes());
        check(&sealed);
    }
}

/// The root of a pool.
pub fn superblock(bytes: &[u8]) {
    let mut block = bytes.to_vec();
    block.resize(4096, 0);
    let check = |bytes: &[u8]| {
        if let Ok(root) = Superblock::decode(bytes) {
            assert_eq!(Superblock::decode(&root.encode()).as_ref(), Ok(&root));
        }
    };
    check(bytes);
    both(&block, 4088, |bytes| crc64(&bytes[..4088]), check);
}

/// The envelope of a configuration, and the configuration in it.
pub fn config(bytes: &[u8]) {
    // Bytes 32 to 36 say how long the body is; all of the input here.
    let mut slot = bytes.to_vec();
    if let Some(len) = bytes.len().checked_sub(48) {
        slot[32..36].copy_from_slice(&(len as u32).to_le_bytes());
    }
    both(&slot, 40, crc64, |bytes| {
        let Ok(envelope) = ConfigEnvelope::decode(bytes) else { return };
        if let Ok(encoded) = envelope.encode() {
            assert_eq!(ConfigEnvelope::decode(&encoded).as_ref(), Ok(&envelope));
        }
        json(&envelope.body);
    });
    let _ = ConfigEnvelope::decode(bytes);
    json(bytes);
}

fn json(bytes: &[u8]) {
    if let Ok(config) = PoolConfig::decode(bytes) {
        let again = PoolConfig::decode(&config.encode());
        assert_eq!(again.as_ref(), Ok(&config));
        assert!(config.data_members().count() <= bytes.len());
    }
}

/// The headers of a log device in memory: of its backup device, and of the memory.
pub fn dram(bytes: &[u8]) {
    let mut block = bytes.to_vec();
    block.resize(4096, 0);
    both(
        &block,
        4088,
        |bytes| crc64(&bytes[..4088]),
        |bytes| {
            if let Ok(header) = BackupHeader::decode(bytes) {
                assert_eq!(BackupHeader::decode(&header.encode()), Ok(header));
            }
            if let Ok(header) = MemoryHeader::decode(bytes) {
                assert_eq!(MemoryHeader::decode(&header.encode()), Ok(header));
            }
        },
    );
    // Of any length, as a device gives it.
    let _ = (BackupHeader::decode(bytes), DramKind::of(bytes));
}

/// The header, a footer and the snapshot's header of a cache device.
pub fn cache_device(bytes: &[u8]) {
    let mut block = bytes.to_vec();
    block.resize(4096, 0);
    both(
        &block,
        4088,
        |bytes| crc64(&bytes[..4088]),
        |bytes| {
            if let Ok(header) = CacheHeader::decode(bytes) {
                assert_eq!(CacheHeader::decode(&header.encode()), Ok(header));
            }
            if let Ok(header) = SnapshotHeader::decode(bytes) {
                assert_eq!(SnapshotHeader::decode(&header.encode()), Ok(header));
            }
        },
    );
    let shape = CacheShape::of(64 << 20);
    let check = |bytes: &[u8]| {
        let Ok(footer) = RegionFooter::decode(bytes) else { return };
        if footer.entries.len() <= shape.data_blocks() as usize {
            assert_eq!(RegionFooter::decode(&footer.encode(shape)), Ok(footer));
        }
    };
    check(bytes);
    // With the sums that its entries and its head should have.
    if let (Some(count), true) = (bytes.get(12), bytes.len() >= 64) {
        let mut sealed = bytes.to_vec();
        let count = usize::from(*count) % 16;
        sealed[12..16].copy_from_slice(&(count as u32).to_le_bytes());
        sealed.resize(64 + 24 * count, 0);
        let body = crc64(&sealed[64..]);
        sealed[32..40].copy_from_slice(&body.to_le_bytes());
        let head = crc64(&sealed[..40]);
        sealed[40..48].copy_from_slice(&head.to_le_bytes());
        check(&sealed);
    }
}

/// The heartbeat of an owner, and the log mark beside it.
pub fn heartbeat(bytes: &[u8]) {
    both(
        bytes,
        40,
        |bytes| crc64(&bytes[..40]),
        |bytes| {
            if let Ok(beat) = Heartbeat::decode(bytes) {
                assert_eq!(Heartbeat::decode(&beat.encode()), Ok(beat));
            }
        },
    );
    both(
        bytes,
        32,
        |bytes| crc64(&bytes[..32]),
        |bytes| {
            if let Ok((pool, mark)) = LogMark::decode(bytes) {
                assert_eq!(LogMark::decode(&mark.encode(pool)), Ok((pool, mark)));
            }
        },
    );
}

/// The footer of a segment.
pub fn footer(bytes: &[u8]) {
    let check = |bytes: &[u8]| {
        if let Ok(footer) = Footer::decode(bytes) {
            let encoded = footer.encode();
            assert_eq!(Footer::decode(&encoded).as_ref(), Ok(&footer));
        }
    };
    check(bytes);
    // Again with right checksums.
    let mut pages = bytes.to_vec();
    pages.resize(bytes.len().next_multiple_of(4096).max(4096), 0);
    let first = pages.len() - 4096;
    let word = |at: usize| {
        u64::from_le_bytes(pages[first + at..first + at + 8].try_into().expect("eight bytes"))
    };
    let place =
        FooterPlace { pool: word(16), segment: SegmentId((word(8) >> 32) as u32), birth: word(24) };
    for (number, page) in (0..).zip(pages.rchunks_mut(4096)) {
        place.seal(number, page);
    }
    check(&pages);
}

/// A frame of the map journal.
pub fn journal_frame(bytes: &[u8]) {
    let sum = |bytes: &[u8]| {
        let header = FrameHeader::decode(bytes).ok();
        let len = header.filter(|h| h.kind != FrameKind::Pad).map_or(0, |h| h.payload_bytes);
        let payload = bytes.get(56..56 + len as usize).unwrap_or_default();
        crc64_of_parts(&[&bytes[..48], payload])
    };
    both(bytes, 48, sum, |bytes| {
        let Ok(header) = FrameHeader::decode(bytes) else { return };
        assert!(u64::from(header.blocks()) * 4096 >= u64::from(header.payload_bytes));
        let Ok(payload) = header.check(bytes) else { return };
        let FrameHeader { pool, seq, commit, kind, payload_bytes, link, .. } = header;
        let zeros = vec![0; (payload_bytes as usize).min(1 << 20)];
        let payload = if kind == FrameKind::Pad { &zeros } else { payload };
        let (encoded, sum) = journal::encode_frame(pool, seq, commit, link, kind, false, payload);
        let again = FrameHeader::decode(&encoded).expect("own bytes");
        let seen = (again.pool, again.seq, again.commit, again.kind, again.payload_bytes);
        assert_eq!(seen, (pool, seq, commit, kind, payload.len() as u32));
        assert_eq!((again.link, again.sum), (link, sum));
        let back = again.check(&encoded).expect("own bytes");
        assert!(kind == FrameKind::Pad || back == payload);
        assert_eq!(encoded.len(), again.blocks() as usize * 4096);
    });
}

/// States of segments.
pub fn segment_records(bytes: &[u8]) {
    if let Ok(records) = SegmentRecord::decode_all(bytes) {
        let mut out = Encoder::new();
        records.iter().for_each(|record| record.encode(&mut out));
        assert_eq!(SegmentRecord::decode_all(&out.finish()).as_ref(), Ok(&records));
    }
}

/// Snapshots.
pub fn snapshot_records(bytes: &[u8]) {
    if let Ok(records) = SnapshotRecord::decode_all(bytes) {
        let mut out = Encoder::new();
        records.iter().for_each(|record| record.encode(&mut out));
        assert_eq!(SnapshotRecord::decode_all(&out.finish()).as_ref(), Ok(&records));
    }
}

/// Fingerprints of de-duplicated blocks in the map journal.
pub fn fingerprints(bytes: &[u8]) {
    if let Ok(all) = Fingerprints::decode(bytes) {
        assert_eq!(all.encode(), bytes);
    }
}

/// Entries and checkpoints of a device in an object store.
pub fn object_device(bytes: &[u8]) {
    if let Ok(entry) = Entry::decode(bytes) {
        assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
    }
    if let Ok(checkpoint) = Checkpoint::decode(bytes) {
        assert_eq!(Checkpoint::decode(&checkpoint.encode()), Ok(checkpoint));
    }
}

/// Packed blocks, and the units that begin in the first.
pub fn packed_block(bytes: &[u8]) {
    let blocks: Vec<&[u8]> = bytes.chunks(BLOCK_LEN).collect();
    for slot in 0..16 {
        let at = PackedRef { block: Lba(0), slot, index: 0 };
        let Some(span) = blocks.get(..at.span() as usize) else { continue };
        if let Ok((unit, bytes)) = unit_in(span, slot) {
            assert_eq!(unit.slot, slot);
            assert!(bytes.len() <= MAX_UNIT_BYTES);
        }
    }
}

/// One change, with runs cut into blocks, so that how they were cut does not count.
#[derive(Debug, PartialEq)]
enum Flat {
    Assign { lba: u64, addr: u64, sum: u64 },
    AssignSealed { lba: u64, addr: u64 },
    Clear { lba: u64, blocks: u64 },
    Drop,
}

fn flat(deltas: &[Delta]) -> BTreeMap<VolumeId, Vec<Flat>> {
    let mut all: BTreeMap<VolumeId, Vec<Flat>> = BTreeMap::new();
    for (volume, group) in deltas.iter().flat_map(Delta::volumes) {
        let mut sums = group.sums.iter();
        for change in &group.changes {
            let out = all.entry(volume).or_default();
            match *change {
                Change::Drop => out.push(Flat::Drop),
                Change::Clear { lba, blocks } => out.push(Flat::Clear { lba: lba.0, blocks }),
                Change::AssignSealed { lba, blocks, addr } => out.extend((0..blocks).map(|at| {
                    let addr = addr.plus(at).raw();
                    Flat::AssignSealed { lba: lba.0 + u64::from(at), addr }
                })),
                Change::Assign { lba, blocks, addr } => {
                    for at in 0..blocks {
                        let sum = *sums.next().expect("a sum for each block");
                        let addr = addr.plus(at).raw();
                        out.push(Flat::Assign { lba: lba.0 + u64::from(at), addr, sum });
                    }
                }
            }
        }
        assert_eq!(sums.next(), None, "a sum without a block");
    }
    all
}

/// Changes of the map.
pub fn map_delta(bytes: &[u8]) {
    let Ok(delta) = Delta::decode(bytes) else { return };
    let before = flat(std::slice::from_ref(&delta));
    for limit in [64, 200, journal::MAX_PAYLOAD_BYTES, usize::MAX >> 8] {
        let payloads = delta.encode(limit);
        assert!(payloads.iter().all(|payload| payload.len() <= limit), "over {limit} bytes");
        if limit == usize::MAX >> 8 {
            assert!(payloads.iter().all(|payload| payload.len() <= delta.encoded_len_max()));
            assert!(payloads.len() <= 1);
        }
        let again: Vec<Delta> =
            payloads.iter().map(|payload| Delta::decode(payload).expect("own bytes")).collect();
        assert_eq!(flat(&again), before);
    }
}

/// Where a leaf's blocks lie: block, address, whether the sum is elsewhere; and the sums.
type Blocks = (VolumeId, u32, Vec<(u32, u64, bool)>, Vec<u64>);

fn blocks(images: &[LeafImage]) -> Vec<Blocks> {
    let one = |image: &LeafImage| {
        let each = |run: &forebay_format::map_record::LeafRun| {
            let run = *run;
            (0..run.blocks).map(move |at| (run.start + at, run.addr.plus(at).raw(), run.sealed))
        };
        let all = image.runs.iter().flat_map(each).collect();
        (image.volume, image.leaf, all, image.sums.clone())
    };
    images.iter().map(one).collect()
}

/// Whole leaves of the map.
pub fn leaf_images(bytes: &[u8]) {
    let Ok(images) = decode_leaves(bytes) else { return };
    for image in &images {
        assert!(image.encoded_len() <= LeafImage::ENCODED_LEN_MAX);
    }
    for limit in [LeafImage::ENCODED_LEN_MAX + 1, journal::MAX_PAYLOAD_BYTES] {
        let payloads = encode_leaves(&images, limit);
        assert!(payloads.iter().all(|payload| payload.len() <= limit), "over {limit} bytes");
        let again: Vec<LeafImage> =
            payloads.iter().flat_map(|payload| decode_leaves(payload).expect("own")).collect();
        assert_eq!(blocks(&again), blocks(&images));
    }
}

/// A frame of the intent log.
pub fn log_frame(bytes: &[u8]) {
    let sum = |bytes: &[u8]| {
        let len = log_frame::peek(bytes).map_or(0, |header| header.len_bytes as usize);
        let frame = bytes.get(..len.max(64)).unwrap_or(&bytes[..64]);
        crc64_of_parts(&[&frame[..56], &frame[64..]])
    };
    // Inputs stay short: what the frame says it has, it has, in zeros.
    let mut whole = bytes.to_vec();
    if let Ok(header) = log_frame::peek(bytes) {
        whole.resize(whole.len().max(header.len_bytes as usize), 0);
    }
    if whole.len() < 64 {
        let _ = (log_frame::decode(bytes), log_frame::hint_table(bytes));
        return;
    }
    both(&whole, 56, sum, |bytes| {
        let hints = log_frame::hint_table(bytes);
        let Ok(frame) = log_frame::decode(bytes) else { return };
        assert_eq!(hints, frame.entries, "what is right is read the same as what is guessed");
        let mut again = bytes[..frame.header.len_bytes as usize].to_vec();
        let (head, data) = again.split_at_mut(frame.data_start);
        let sums = data.chunks(BLOCK_LEN).map(crc64);
        log_frame::seal(&frame.header, &frame.entries, head, sums);
        assert_eq!(log_frame::decode(&again).as_ref(), Ok(&frame));
    });
}

/// The log as the root knows it.
pub fn log_state(bytes: &[u8]) {
    let at = 48 + 17 * usize::from(bytes.get(6).copied().unwrap_or(0));
    both(
        bytes,
        at,
        |bytes| crc64(&bytes[..at]),
        |bytes| {
            if let Ok((state, used)) = LogState::decode(bytes) {
                let encoded = state.encode();
                assert_eq!(encoded.len(), used);
                assert_eq!(LogState::decode(&encoded), Ok((state, used)));
            }
        },
    );
}
