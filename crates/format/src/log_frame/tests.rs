use super::*;
use proptest::prelude::*;

fn entry() -> impl Strategy<Value = RecordEntry> {
    let kind = prop_oneof![Just(RecordKind::Write), Just(RecordKind::Zero)];
    let fragment =
        prop_oneof![Just(Fragment::Whole), Just(Fragment::Continues), Just(Fragment::Last)];
    (kind, fragment, any::<u32>(), 0..1u64 << 51, 0..4u32, 0..1000u64).prop_map(
        |(kind, fragment, volume, lba, blocks, txg)| RecordEntry {
            kind,
            fragment,
            volume: VolumeId(volume),
            lba: Lba(lba),
            blocks,
            txg: TxgId(txg),
        },
    )
}

fn build(entries: &[RecordEntry], seq: u64, fill: u8) -> Vec<u8> {
    let data_bytes = entries.iter().map(RecordEntry::data_bytes).sum();
    let mut frame = vec![fill; frame_len_bytes(entries.len(), data_bytes) as usize];
    let header = FrameHeader {
        pool: 0xfeed,
        epoch: 3,
        seq: FrameSeq(seq),
        ring: 1,
        position_bytes: 40960,
        len_bytes: frame.len() as u32,
        max_txg: TxgId(1000),
        committed: TxgId(997),
        watermark: FrameSeq(seq - 1),
        record_count: entries.len() as u16,
    };
    let (head, data) = frame.split_at_mut(table_end_bytes(entries.len()));
    seal(&header, entries, head, data.chunks(BLOCK_LEN).map(crc64));
    frame
}

#[test]
fn frame_length_is_one_table_block_plus_data() {
    assert_eq!(frame_len_bytes(1, 4096), 8192);
    assert_eq!(frame_len_bytes(126, 126 * 4096), 127 * 4096);
    assert_eq!(frame_len_bytes(127, 127 * 4096), 129 * 4096);
}

#[test]
fn frame_layout_matches_format_document() {
    let entries = [RecordEntry {
        kind: RecordKind::Write,
        fragment: Fragment::Whole,
        volume: VolumeId(7),
        lba: Lba(0x1122),
        blocks: 1,
        txg: TxgId(9),
    }];
    let frame = build(&entries, 5, 0xab);
    assert_eq!(&frame[..8], b"FBLF\x02\x00\x01\x00");
    assert_eq!(frame[8..16], 0xfeed_u64.to_le_bytes());
    assert_eq!(frame[16..20], 3u32.to_le_bytes());
    assert_eq!(frame[20..24], [2, 0, 1, 0]);
    assert_eq!(frame[24..32], 5u64.to_le_bytes());
    assert_eq!(frame[32..40], 1000u64.to_le_bytes());
    assert_eq!(frame[40..48], 4u64.to_le_bytes());
    assert_eq!(frame[48..56], [10, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(frame[64..72], [1, 0, 0, 0, 7, 0, 0, 0]);
    assert_eq!(frame[72..80], 0x1122u64.to_le_bytes());
    assert_eq!(frame[80..88], [1, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(frame[88..96], 9u64.to_le_bytes());
    assert!(frame[96..4096].iter().all(|b| *b == 0));
    assert!(frame[4096..].iter().all(|b| *b == 0xab));
}

#[test]
fn ring_wraps_where_longest_frame_would_not_fit() {
    let limit = ring_frame_limit_bytes(1 << 20, 1 << 20);
    assert_eq!(limit, 128 << 10);
    assert_eq!(next_position_bytes(0, 1 << 20, limit), 0);
    assert_eq!(next_position_bytes((1 << 20) - limit, 1 << 20, limit), (1 << 20) - limit);
    assert_eq!(next_position_bytes((1 << 20) - limit + 4096, 1 << 20, limit), 0);
    assert_eq!(ring_frame_limit_bytes(1 << 17, 1 << 30), 1 << 17);
}

proptest! {
    #[test]
    fn frames_round_trip(
        entries in prop::collection::vec(entry(), 0..200),
        seq in 1..u64::MAX,
        fill: u8,
    ) {
        let mut bytes = build(&entries, seq, fill);
        bytes.extend_from_slice(&[1, 2, 3]);
        let frame = decode(&bytes).unwrap();
        prop_assert_eq!(frame.header.seq.0, seq);
        prop_assert_eq!(frame.header.position_bytes, 40960);
        prop_assert_eq!(&frame.entries, &entries);
        prop_assert_eq!(frame.data_start, table_end_bytes(entries.len()));
        prop_assert_eq!(hint_table(&bytes), entries);
    }

    #[test]
    fn flipped_bit_fails_frame_checksum(
        entries in prop::collection::vec(entry(), 1..20),
        at: prop::sample::Index,
        bit in 0..8u32,
        cut: prop::sample::Index,
    ) {
        let good = build(&entries, 9, 1);
        let mut bytes = good.clone();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(decode(&bytes).is_err());
        prop_assert!(decode(&good[..cut.index(good.len())]).is_err());
        let _ = hint_table(&bytes);
    }

    // With a right checksum the range checks stand alone; they too must refuse, not panic.
    #[test]
    fn invalid_frame_with_right_checksum_never_panics(
        entries in prop::collection::vec(entry(), 1..8),
        changes in prop::collection::vec((8..400usize, any::<u8>()), 1..8),
    ) {
        let mut bytes = build(&entries, 9, 1);
        for (at, value) in changes {
            bytes[at] = value;
        }
        let crc = frame_crc(&bytes);
        bytes[CRC_AT..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
        if let Ok(frame) = decode(&bytes) {
            let data: u64 = frame.entries.iter().map(RecordEntry::data_bytes).sum();
            prop_assert!(frame.data_start as u64 + data <= bytes.len() as u64);
        }
    }

    #[test]
    fn any_bytes_are_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
        prop_assert!(decode(&bytes).is_err());
        let _ = (peek(&bytes), hint_table(&bytes), LogState::decode(&bytes));
        let mut bytes = bytes;
        if bytes.len() >= 8 {
            bytes[..8].copy_from_slice(b"FBLF\x02\x00\x01\x00");
            let _ = (decode(&bytes), hint_table(&bytes));
            bytes[..8].copy_from_slice(b"FBLS\x01\x00\x02\x00");
            prop_assert!(LogState::decode(&bytes).is_err());
        }
    }

    #[test]
    fn log_states_round_trip_and_flipped_bit_is_detected(
        seqs in (1..1000u64, 0..1000u64),
        tails in prop::collection::vec(0..256u64, 0..MAX_RINGS),
        at: prop::sample::Index,
        bit in 0..8u32,
    ) {
        let rings = tails.iter().enumerate().map(|(i, tail)| RingState {
            index: i as u8,
            len_bytes: MIN_RING_BYTES,
            tail_bytes: tail * 4096,
        });
        let state = LogState {
            epoch: 4,
            committed: TxgId(8),
            tail_seq: FrameSeq(seqs.0),
            next_seq: FrameSeq(seqs.0 + seqs.1),
            watermark: FrameSeq(seqs.0 - 1),
            max_frame_bytes: 1 << 17,
            rings: rings.collect(),
        };
        let mut bytes = state.encode();
        prop_assert_eq!(bytes.len(), 56 + 17 * state.rings.len());
        let (back, used) = LogState::decode(&bytes).unwrap();
        prop_assert_eq!((back, used), (state, bytes.len()));
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(LogState::decode(&bytes).is_err());
    }
}
