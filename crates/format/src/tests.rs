use crate::checksum::{block_sum, crc64};
use crate::config::PoolConfig;
use crate::footer::{Footer, FooterLength, FooterPlace, Run, footer_blocks, pages_of, sum_in_page};
use crate::journal::{FrameHeader, FrameKind, SegmentRecord, SegmentUse, encode_frame};
use crate::label::{ConfigEnvelope, Heartbeat, LABEL_BYTES, label_offsets};
use crate::superblock::{COUNTERS, JournalPosition, Superblock, VERSION};
use crate::{Decoder, Encoder, FooterFlaw, FormatFlaw};
use forebay_units::{BlockAddr, CommitId, Lba, SegmentId, TxgId, VolumeId};
use proptest::prelude::*;

fn superblock() -> Superblock {
    let mut counters = [0; COUNTERS];
    counters[3] = 77;
    Superblock {
        version: VERSION,
        pool: 1,
        commit: CommitId(35),
        previous: CommitId(3),
        txg: TxgId(30),
        config_generation: 4,
        config_sum: 5,
        journal_start: Some(JournalPosition {
            addr: BlockAddr::new(SegmentId(2), 0),
            seq: 9,
            link: 11,
        }),
        journal_end: None,
        exported: true,
        written_at: 1,
        nonce: 2,
        host: 3,
        counters,
        log_state: vec![1, 2, 3],
    }
}

#[test]
fn checksum_is_crc64_nvme() {
    // The check value of the CRC catalogue for CRC-64/NVME.
    assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
}

#[test]
fn block_sum_depends_on_pool_volume_and_address() {
    let data = [7u8; 4096];
    let here = block_sum(1, VolumeId(2), Lba(3), &data);
    assert!(here < 1 << 40);
    assert_ne!(here, block_sum(1, VolumeId(2), Lba(4), &data));
    assert_ne!(here, block_sum(1, VolumeId(3), Lba(3), &data));
    assert_ne!(here, block_sum(2, VolumeId(2), Lba(3), &data));
}

#[test]
fn superblock_round_trips_and_flipped_bit_is_detected() {
    let root = superblock();
    let bytes = root.encode();
    assert_eq!((bytes.len(), root.slot()), (4096, 3));
    assert_eq!(Superblock::decode(&bytes).unwrap(), root);
    assert_eq!(Superblock::version(&bytes), Some(VERSION));
    let mut later = bytes.clone();
    later[8] += 1;
    assert_eq!(Superblock::version(&later), None, "it is damaged, not of another version");
    let body = later.len() - 8;
    let sum = crc64(&later[..body]);
    later[body..].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(Superblock::version(&later), Some(VERSION + 1));
    let version = FormatFlaw::Version { expected: VERSION, found: VERSION + 1 };
    assert_eq!(Superblock::decode(&later).unwrap_err().flaw, version);
    assert_eq!(Superblock::version(&[]), None);
    for byte in (0..bytes.len()).step_by(7) {
        let mut bad = bytes.clone();
        bad[byte] ^= 0x10;
        assert!(Superblock::decode(&bad).is_err(), "byte {byte}");
    }
}

#[test]
fn configuration_round_trips_and_oversize_is_refused() {
    let envelope = ConfigEnvelope { pool: 9, device: 1, generation: 3, body: b"{}".to_vec() };
    let bytes = envelope.encode().unwrap();
    assert_eq!(bytes.len(), 4096);
    assert_eq!(ConfigEnvelope::decode(&bytes).unwrap(), envelope);
    let mut bad = bytes;
    bad[48] ^= 1;
    assert!(ConfigEnvelope::decode(&bad).is_err());
    let large = ConfigEnvelope { body: vec![0; 400 << 10], ..envelope };
    let flaw = large.encode().unwrap_err().flaw;
    assert!(matches!(flaw, FormatFlaw::ConfigTooLong { .. }), "{flaw}");
    assert!(PoolConfig::decode(b"{\"name\":1}").is_err());
    let beat = Heartbeat { pool: 1, nonce: 2, host: 3, beat: 4 };
    assert_eq!(Heartbeat::decode(&beat.encode()).unwrap(), beat);
}

#[test]
fn label_areas_do_not_overlap_on_smallest_device() {
    let [front, end] = label_offsets((64 << 20) + 4096);
    assert_eq!((front, end), (0, 63 << 20));
    assert!(end >= LABEL_BYTES);
}

#[test]
fn journal_frames_round_trip() {
    let (frame, sum) = encode_frame(1, 2, 3, 4, FrameKind::Delta, false, &[9; 5000]);
    assert_eq!(frame.len(), 8192);
    let header = FrameHeader::decode(&frame).unwrap();
    assert_eq!((header.seq, header.commit, header.blocks()), (2, 3, 2));
    assert_eq!((header.link, header.sum), (4, sum));
    let (other, _) = encode_frame(1, 2, 3, 5, FrameKind::Delta, false, &[9; 5000]);
    assert_ne!(FrameHeader::decode(&other).unwrap().sum, sum, "the link is summed");
    assert_eq!(header.check(&frame).unwrap(), &[9; 5000]);
    let mut bad = frame.clone();
    bad[4999] ^= 1;
    assert!(header.check(&bad).is_err());
    assert!(header.check(&frame[..4096]).is_err());
    let (pad, _) = encode_frame(1, 2, 3, 4, FrameKind::Pad, false, &[0; 10000]);
    let header = FrameHeader::decode(&pad[..4096]).unwrap();
    assert_eq!(header.blocks(), 3);
    assert!(header.check(&pad[..4096]).is_ok());
    let record = SegmentRecord {
        segment: SegmentId(3),
        kind: SegmentUse::Data,
        stream: 2,
        footer: true,
        rows: 4,
        blocks: 9,
        birth: 5,
        last: 6,
        clock: 7,
    };
    let mut out = Encoder::new();
    record.encode(&mut out);
    assert_eq!(out.len(), SegmentRecord::BYTES);
    assert_eq!(SegmentRecord::decode_all(&out.finish()).unwrap(), [record]);
}

#[test]
fn footer_with_empty_run_is_refused() {
    let mut bytes = Footer::default().encode();
    for (at, value) in [(32, 60u32), (36, 60), (44, 660)] {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    let place = FooterPlace { pool: 0, segment: SegmentId(0), birth: 0 };
    place.seal(0, &mut bytes);
    assert_eq!(Footer::decode(&bytes).unwrap_err().flaw, FooterFlaw::EmptyRun.into());
    // In the short form: 48 bytes of header, 60 sums, and no run to continue.
    bytes[40] = 1;
    place.seal(0, &mut bytes);
    assert_eq!(Footer::decode(&bytes).unwrap_err().flaw, FooterFlaw::RunFollowsNone.into());
}

#[test]
fn footer_lists_volume_blocks_without_padding() {
    let mut footer = Footer::default();
    let pushed = [(1, 7), (1, 8), (Run::PADDING.0, 0), (Run::PADDING.0, 0), (2, 5), (1, 9)];
    for (volume, lba) in pushed {
        footer.push(VolumeId(volume), Lba(lba), 0);
    }
    assert_eq!(footer.runs.len(), 4);
    let blocks: Vec<_> = footer.blocks().map(|(at, volume, lba)| (at, volume.0, lba.0)).collect();
    assert_eq!(blocks, [(0, 1, 7), (1, 1, 8), (4, 2, 5), (5, 1, 9)]);
}

proptest! {
    #[test]
    fn footers_round_trip(
        blocks in prop::collection::vec(
            (0u32..3, prop_oneof![0u64..50, 0u64..1 << 40], any::<u64>()),
            0..2500,
        ),
    ) {
        let mut footer = Footer { pool: 5, segment: SegmentId(8), birth: 2, ..Footer::default() };
        for (volume, lba, sum) in &blocks {
            footer.push(VolumeId(*volume), Lba(*lba), sum & ((1 << 40) - 1));
        }
        footer.push(Run::PADDING, Lba(0), 0);
        let mut length = FooterLength::default();
        for (volume, lba, _) in &blocks {
            prop_assert!(length.certain(1000) < 1000);
            length.push(VolumeId(*volume), Lba(*lba));
        }
        length.push(Run::PADDING, Lba(0));
        let bytes = footer.encode();
        let pages = bytes.len() as u32 / 4096;
        prop_assert!(pages <= length.blocks_with(0));
        prop_assert!(length.blocks_with(0) <= footer_blocks(blocks.len() as u32 + 1));
        let certain = length.certain(1000);
        prop_assert!(certain + length.blocks_with(certain) <= 1000);
        prop_assert_eq!(pages_of(&bytes[bytes.len() - 4096..]).unwrap(), pages);
        // The bytes before the footer do not matter.
        let mut longer = vec![7; 8192];
        longer.extend(&bytes);
        prop_assert_eq!(&Footer::decode(&longer).unwrap(), &footer);
        prop_assert!(Footer::decode(&bytes[..bytes.len() - 4096]).is_err());
        prop_assert_eq!(&Footer::decode(&bytes).unwrap(), &footer);
        // One page alone has the sums of its blocks, and is valid only in its place.
        let place = FooterPlace { pool: 5, segment: SegmentId(8), birth: 2 };
        for (block, sum) in (0..).zip(&footer.sums) {
            let page = FooterPlace::page_of(block);
            let bytes = &bytes[bytes.len() - (page as usize + 1) * 4096..][..4096];
            prop_assert!(place.owns(page, bytes));
            prop_assert!(!place.owns(page + 1, bytes));
            let reborn = FooterPlace { birth: 3, ..place };
            prop_assert!(!reborn.owns(page, bytes));
            prop_assert_eq!(sum_in_page(bytes, block), *sum);
        }
    }

    #[test]
    fn decoders_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..5000),
        valid in 0usize..4,
        at in 0usize..4096,
    ) {
        let _ = (Superblock::decode(&bytes), ConfigEnvelope::decode(&bytes));
        let _ = (Heartbeat::decode(&bytes), Footer::decode(&bytes));
        let _ = (SegmentRecord::decode_all(&bytes), PoolConfig::decode(&bytes));
        if let Ok(header) = FrameHeader::decode(&bytes) {
            let _ = header.check(&bytes);
        }
        let mut good = match valid {
            0 => superblock().encode(),
            1 => encode_frame(1, 2, 3, 4, FrameKind::Leaves, false, &[9; 5000]).0,
            2 => Footer::default().encode(),
            _ => Heartbeat::default().encode(),
        };
        if let Some(byte) = bytes.pop() {
            let len = good.len();
            good[at % len] = byte;
        }
        let _ = (Superblock::decode(&good), Footer::decode(&good), Heartbeat::decode(&good));
        if let Ok(header) = FrameHeader::decode(&good) {
            let _ = header.check(&good);
        }
        let mut input = Decoder::new("x", &bytes);
        let _ = (input.string(), input.u40(), input.u16());
    }
}

// Runs of every length, so that a footer ends at every place of a page.
#[test]
fn the_bounds_of_a_growing_footer_hold_at_the_end_of_each_page() {
    let check = |length: &FooterLength, left: u32| {
        let certain = length.certain(left);
        let all = certain + length.blocks_with(certain);
        assert!(certain == 0 || all <= left, "{certain} blocks and their footer in {left}");
    };
    for gap_bits in 1..40 {
        let mut footer = Footer { pool: 1, segment: SegmentId(2), birth: 3, ..Footer::default() };
        let mut length = FooterLength::default();
        for number in 0..900 {
            let lba = Lba((number % 2) << gap_bits | number);
            footer.push(VolumeId(7), lba, number);
            length.push(VolumeId(7), lba);
            let blocks = (footer.encode().len() / 4096) as u32;
            let bound = length.blocks_with(0);
            assert!(blocks <= bound, "{number} gaps of {gap_bits} bits: {blocks} of {bound}");
        }
        for left in (1..20_000).step_by(7) {
            check(&length, left);
        }
    }
}

// A sequential volume fills a large segment in one run but for the width of its length.
#[test]
fn footers_of_the_longest_runs_round_trip() {
    for padding in [0, 1, 65_534, 65_535, 65_536, 70_000] {
        let mut footer = Footer { pool: 1, segment: SegmentId(2), birth: 3, ..Footer::default() };
        let mut length = FooterLength::default();
        let volumes = (0..200_000).map(|number| (VolumeId(7), Lba(number)));
        for (volume, lba) in volumes.chain((0..padding).map(|_| (Run::PADDING, Lba(0)))) {
            footer.push(volume, lba, 9);
            length.push(volume, lba);
        }
        let bytes = footer.encode();
        assert!((bytes.len() / 4096) as u32 <= length.blocks_with(0));
        assert_eq!(Footer::decode(&bytes), Ok(footer));
    }
}
