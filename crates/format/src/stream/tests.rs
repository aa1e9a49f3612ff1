use proptest::prelude::*;

use super::*;
use crate::packed::Codec;

const BLOCK: u64 = BLOCK_BYTES;

fn header() -> StreamHeader {
    StreamHeader {
        pool_guid: 7,
        guid: 9,
        base_guid: 0,
        created_at: 1_700_000_000,
        size_bytes: 8 * BLOCK,
        start_bytes: 0,
        is_as_stored: false,
        snapshot: "monday".into(),
        source: "tank/db".into(),
        base: String::new(),
    }
}

fn incremental() -> StreamHeader {
    StreamHeader { base_guid: 5, base: "sunday".into(), ..header() }
}

/// The records of a stream, and where each begins. The first chunk includes the preamble.
fn small() -> Vec<Vec<u8>> {
    let (mut encoder, first) = StreamEncoder::begin(&header());
    let mut parts = vec![first];
    parts.push(encoder.data(0, &[1; 8192]));
    parts.push(encoder.hole(2 * BLOCK, 3 * BLOCK));
    parts.push(encoder.data(5 * BLOCK, &[2; 4096]));
    parts.push(encoder.data(6 * BLOCK, &[3; 8192]));
    parts.push(encoder.end());
    parts
}

/// Reads a stream to its end in pieces of `step` bytes: how many records, or what is wrong.
fn read(bytes: &[u8], step: usize) -> Result<u64, StreamError> {
    let mut decoder = StreamDecoder::new();
    let mut records = 0;
    for piece in bytes.chunks(step.max(1)) {
        decoder.push(piece);
        while decoder.next_record()?.is_some() {
            records += 1;
        }
    }
    decoder.finish().map(|()| records)
}

fn flaw(parts: &[Vec<u8>]) -> StreamFlaw {
    read(&parts.concat(), 1000).unwrap_err().flaw
}

#[test]
fn records_come_back_as_they_were_made() {
    let bytes = small().concat();
    let mut decoder = StreamDecoder::new();
    decoder.push(&bytes);
    assert_eq!(decoder.next_record(), Ok(Some(Record::Begin(header()))));
    let data = Record::Data { offset_bytes: 0, data: &[1; 8192] };
    assert_eq!(decoder.next_record(), Ok(Some(data)));
    let hole = Record::Hole { offset_bytes: 2 * BLOCK, len_bytes: 3 * BLOCK };
    assert_eq!(decoder.next_record(), Ok(Some(hole)));
    for _ in 0..2 {
        assert!(matches!(decoder.next_record(), Ok(Some(Record::Data { .. }))));
    }
    let totals = Totals { records: 6, data_bytes: 5 * BLOCK, hole_bytes: 3 * BLOCK };
    assert_eq!(decoder.next_record(), Ok(Some(Record::End(totals))));
    assert_eq!(decoder.next_record(), Ok(None));
    assert_eq!(decoder.finish(), Ok(()));
    for step in [1, 7, 40, 4096, 100_000] {
        assert_eq!(read(&bytes, step), Ok(6), "in steps of {step}");
    }
}

#[test]
fn records_in_another_order_are_noticed_at_the_first_that_is_wrong() {
    let parts = small();
    for (from, to) in [(1, 2), (1, 3), (3, 4), (2, 3), (4, 5)] {
        let mut swapped = parts.clone();
        swapped.swap(from, to);
        let error = read(&swapped.concat(), 512).unwrap_err();
        assert_eq!((error.record, error.flaw), (from as u64, StreamFlaw::Checksum));
        let before: usize = swapped[..from].iter().map(Vec::len).sum();
        assert_eq!(error.offset_bytes, before as u64);
    }
    for dropped in 1..5 {
        let mut fewer = parts.clone();
        fewer.remove(dropped);
        assert_eq!(flaw(&fewer), StreamFlaw::Checksum, "record {dropped} is missing");
        let mut more = parts.clone();
        more.insert(dropped, parts[dropped].clone());
        assert_eq!(flaw(&more), StreamFlaw::Checksum, "record {dropped} is there twice");
    }
}

#[test]
fn a_stream_that_ends_early_is_no_stream_wherever_it_is_cut() {
    let bytes = small().concat();
    for cut in 0..bytes.len() {
        let error = read(&bytes[..cut], 4096).unwrap_err();
        assert_eq!(error.flaw, StreamFlaw::Truncated, "cut at {cut}");
        assert!(error.offset_bytes <= cut as u64);
    }
    let mut behind = bytes.clone();
    behind.push(0);
    assert_eq!(read(&behind, 4096).unwrap_err().flaw, StreamFlaw::Behind);
    assert_eq!(read(&behind, 1).unwrap_err().flaw, StreamFlaw::Behind);
}

#[test]
fn what_no_sender_makes_is_refused_though_its_checksums_are_right() {
    let all = |header: &StreamHeader, make: &dyn Fn(&mut StreamEncoder) -> Vec<Vec<u8>>| {
        let (mut encoder, first) = StreamEncoder::begin(header);
        let mut parts = vec![first];
        parts.extend(make(&mut encoder));
        parts.push(encoder.end());
        flaw(&parts)
    };
    let is_range = |flaw: StreamFlaw| matches!(flaw, StreamFlaw::Range { .. });
    let overlap = |e: &mut StreamEncoder| vec![e.hole(0, 2 * BLOCK), e.hole(BLOCK, BLOCK)];
    assert!(is_range(all(&incremental(), &overlap)));
    let past = |e: &mut StreamEncoder| vec![e.hole(7 * BLOCK, 2 * BLOCK)];
    assert!(is_range(all(&incremental(), &past)));
    let wrapped = |e: &mut StreamEncoder| vec![e.hole(u64::MAX - 4095, BLOCK)];
    assert!(is_range(all(&incremental(), &wrapped)));
    let gap = |e: &mut StreamEncoder| vec![e.hole(BLOCK, 7 * BLOCK)];
    assert!(is_range(all(&header(), &gap)));
    let part = |e: &mut StreamEncoder| vec![e.data(0, &[0; 512])];
    assert!(is_range(all(&incremental(), &part)));
    let short = |e: &mut StreamEncoder| vec![e.hole(0, BLOCK)];
    assert!(matches!(all(&header(), &short), StreamFlaw::Totals { .. }));
    let early = StreamHeader { start_bytes: 4 * BLOCK, ..header() };
    assert!(is_range(all(&early, &short)));
    for wrong in [
        StreamHeader { start_bytes: 9 * BLOCK, ..header() },
        StreamHeader { size_bytes: 100, ..header() },
        StreamHeader { guid: 0, ..header() },
    ] {
        assert_eq!(all(&wrong, &|_| Vec::new()), StreamFlaw::Header);
    }
    let (mut encoder, _) = StreamEncoder::begin(&header());
    let twice = |e: &mut StreamEncoder| vec![e.record(BEGIN, 0, 0, &header().encode())];
    assert_eq!(all(&header(), &twice), StreamFlaw::OutOfPlace { kind: BEGIN });
    assert_eq!(
        all(&header(), &|e| vec![e.record(9, 0, 0, &[])]),
        StreamFlaw::UnknownKind { kind: 9 }
    );
    let long = vec![0; MAX_PAYLOAD_BYTES + 4096];
    let long = encoder.record(DATA, 0, long.len() as u64, &long);
    let (_, first) = StreamEncoder::begin(&header());
    assert!(matches!(flaw(&[first, long]), StreamFlaw::Payload { .. }));
}

#[test]
fn another_version_and_another_file_are_named() {
    let mut bytes = small().concat();
    bytes[8] = 3;
    assert_eq!(read(&bytes, 64).unwrap_err().flaw, StreamFlaw::Version { found: 3 });
    assert_eq!(read(b"PK\x03\x04", 64).unwrap_err().flaw, StreamFlaw::NoMagic);
    bytes[8] = 1;
    bytes[12] = 1;
    assert_eq!(read(&bytes, 64).unwrap_err().flaw, StreamFlaw::Checksum, "the reserved bytes");
}

#[test]
fn tokens_come_back_and_bad_ones_do_not() {
    let token = ResumeToken {
        guid: u64::MAX,
        base_guid: 3,
        start_bytes: 1 << 40,
        source: "tank/db@monday".into(),
    };
    let text = token.to_text();
    assert_eq!(ResumeToken::parse(&text), Some(token));
    for at in 0..text.len() {
        let mut wrong = text.clone().into_bytes();
        wrong[at] = if wrong[at] == b'0' { b'1' } else { b'0' };
        assert_eq!(ResumeToken::parse(&String::from_utf8(wrong).unwrap()), None, "at {at}");
        assert_eq!(ResumeToken::parse(&text[..at]), None, "cut at {at}");
    }
    assert_eq!(ResumeToken::parse("1-00000000-ä"), None);
}

proptest! {
    #[test]
    fn damage_is_noticed_wherever_it_is(at in 0usize..60_000, bit in 0u8..8, step in 1usize..9000) {
        let mut bytes = small().concat();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        prop_assert!(read(&bytes, step).is_err());
    }

    #[test]
    fn any_ranges_in_order_come_back(
        runs in proptest::collection::vec((0u64..3, 1u64..5, any::<bool>()), 0..40),
        step in 1usize..50_000,
    ) {
        let size_bytes = BLOCK << 20;
        let header = StreamHeader { size_bytes, ..incremental() };
        let (mut encoder, first) = StreamEncoder::begin(&header);
        let (mut bytes, mut at, mut expected) = (first, 0, Vec::new());
        for (gap, blocks, is_data) in runs {
            at += gap * BLOCK;
            let len = blocks * BLOCK;
            expected.push((at, len, is_data));
            bytes.extend(match is_data {
                true => encoder.data(at, &vec![at as u8; len as usize]),
                false => encoder.hole(at, len),
            });
            at += len;
        }
        bytes.extend(encoder.end());
        let (mut decoder, mut found) = (StreamDecoder::new(), Vec::new());
        for piece in bytes.chunks(step) {
            decoder.push(piece);
            while let Some(record) = decoder.next_record().unwrap() {
                match record {
                    Record::Data { offset_bytes, data } => {
                        prop_assert!(data.iter().all(|byte| *byte == offset_bytes as u8));
                        found.push((offset_bytes, data.len() as u64, true));
                    }
                    Record::Hole { offset_bytes, len_bytes } => {
                        found.push((offset_bytes, len_bytes, false));
                    }
                    _ => {}
                }
            }
        }
        decoder.finish().unwrap();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes, 50);
        let with_magic = [&small()[0][..PREAMBLE_BYTES], &bytes[..]].concat();
        let _ = read(&with_magic, 50);
    }
}

fn as_stored() -> StreamHeader {
    StreamHeader { is_as_stored: true, ..header() }
}

fn payload(units: &[StoredUnit<'_>]) -> Vec<u8> {
    let mut out = Encoder::new();
    units.iter().for_each(|unit| unit.encode(&mut out));
    out.finish()
}

#[test]
fn compressed_and_repeated_ranges_come_back_as_they_were_made() {
    let units = [
        StoredUnit { codec: Some(Codec::Lz4), blocks: 4, bytes: &[5; 700] },
        StoredUnit { codec: None, blocks: 1, bytes: &[6; 4096] },
        StoredUnit { codec: Some(Codec::Zstd), blocks: 1, bytes: &[7; 9] },
    ];
    let packed = payload(&units);
    let (mut encoder, mut bytes) = StreamEncoder::begin(&as_stored());
    assert_eq!(bytes[8..16], [2, 0, 0, 0, 3, 0, 0, 0]);
    bytes.extend(encoder.units(0, 6 * BLOCK, &packed));
    bytes.extend(encoder.repeat(6 * BLOCK, 2 * BLOCK, 2 * BLOCK));
    bytes.extend(encoder.end());
    let mut decoder = StreamDecoder::new();
    decoder.push(&bytes);
    assert_eq!(decoder.next_record(), Ok(Some(Record::Begin(as_stored()))));
    let found = decoder.next_record();
    assert_eq!(found, Ok(Some(Record::Units { offset_bytes: 0, units: &packed })));
    assert_eq!(units_of(&packed), Ok(units.to_vec()));
    let (offset_bytes, len_bytes, from_bytes) = (6 * BLOCK, 2 * BLOCK, 2 * BLOCK);
    let repeat = Record::Repeat { offset_bytes, len_bytes, from_bytes };
    assert_eq!(decoder.next_record(), Ok(Some(repeat)));
    let totals = Totals { records: 4, data_bytes: 8 * BLOCK, hole_bytes: 0 };
    assert_eq!(decoder.next_record(), Ok(Some(Record::End(totals))));
}

#[test]
fn impossible_units_and_repeats_are_refused() {
    let one = StoredUnit { codec: Some(Codec::Lz4), blocks: 1, bytes: &[5; 70] };
    let right = payload(&[one, one]);
    let after = |record: &dyn Fn(&mut StreamEncoder) -> Vec<u8>| {
        let (mut encoder, mut bytes) = StreamEncoder::begin(&as_stored());
        bytes.extend(encoder.data(0, &[1; 8192]));
        bytes.extend(record(&mut encoder));
        read(&bytes, 1000).unwrap_err().flaw
    };
    let at = 2 * BLOCK;
    assert_eq!(after(&|to| to.units(at, 2 * BLOCK, &right)), StreamFlaw::Truncated);
    assert_eq!(after(&|to| to.units(at, 3 * BLOCK, &right)), StreamFlaw::Units);
    assert_eq!(after(&|to| to.units(at, 2 * BLOCK, &right[..100])), StreamFlaw::Units);
    let odd = [vec![9, 1, 1, 0, 0], payload(&[one])].concat();
    assert_eq!(after(&|to| to.units(at, 2 * BLOCK, &odd)), StreamFlaw::Units);
    assert_eq!(after(&|to| to.repeat(at, 2 * BLOCK, 0)), StreamFlaw::Truncated);
    for from in [BLOCK, 100, u64::MAX] {
        let flaw = after(&|to| to.repeat(at, 2 * BLOCK, from));
        assert!(matches!(flaw, StreamFlaw::Range { .. }), "{flaw:?} from {from}");
    }
}

#[test]
fn features_that_a_stream_does_not_announce_or_that_are_unknown_are_refused() {
    let (mut encoder, mut plain) = StreamEncoder::begin(&header());
    plain.extend(encoder.repeat(0, BLOCK, 0));
    let kind = 6;
    assert_eq!(read(&plain, 1000).unwrap_err().flaw, StreamFlaw::UnknownKind { kind });
    let (_, mut bytes) = StreamEncoder::begin(&as_stored());
    bytes[12] = 8 | 3;
    assert_eq!(read(&bytes, 1000).unwrap_err().flaw, StreamFlaw::Features { unknown: 8 });
    bytes[8] = 3;
    assert_eq!(read(&bytes, 1000).unwrap_err().flaw, StreamFlaw::Version { found: 3 });
}
