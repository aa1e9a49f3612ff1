//! Send streams: any bytes are read to a record or an error, in pieces as in one, and what was read
//! is what an encoder makes.

use forebay_format::checksum::{crc64, crc64_of_parts};
use forebay_format::stream::{
    COMPRESSED, MAGIC, MAX_PAYLOAD_BYTES, PREAMBLE_BYTES, RECORD_BYTES, REPEATED, Record,
    ResumeToken, StreamDecoder, StreamEncoder, StreamError, Totals, VERSION, VERSION_AS_STORED,
    units_of,
};
use forebay_units::BLOCK_BYTES;

/// What a decoder finds in pieces of `step` bytes: the records as an encoder makes them again, and
/// how it ended.
fn read(bytes: &[u8], step: usize) -> (Vec<u8>, Result<Totals, StreamError>) {
    let mut decoder = StreamDecoder::new();
    let (mut again, mut encoder) = (Vec::new(), None);
    for piece in bytes.chunks(step.max(1)) {
        decoder.push(piece);
        loop {
            match decoder.next_record() {
                Ok(None) => break,
                Err(error) => return (again, Err(error)),
                Ok(Some(Record::Begin(header))) => {
                    let (begun, first) = StreamEncoder::begin(&header);
                    encoder = Some(begun);
                    again.extend(first);
                }
                Ok(Some(Record::Data { offset_bytes, data })) => {
                    assert!(data.len() <= MAX_PAYLOAD_BYTES);
                    let encoder = encoder.as_mut().expect("the first record came before");
                    again.extend(encoder.data(offset_bytes, data));
                }
                Ok(Some(Record::Hole { offset_bytes, len_bytes })) => {
                    let encoder = encoder.as_mut().expect("the first record came before");
                    again.extend(encoder.hole(offset_bytes, len_bytes));
                }
                Ok(Some(Record::Units { offset_bytes, units })) => {
                    let encoder = encoder.as_mut().expect("the first record came before");
                    let found = units_of(units).expect("the decoder has read them");
                    let blocks: u64 = found.iter().map(|unit| u64::from(unit.blocks)).sum();
                    again.extend(encoder.units(offset_bytes, blocks * BLOCK_BYTES, units));
                }
                Ok(Some(Record::Repeat { offset_bytes, len_bytes, from_bytes })) => {
                    let encoder = encoder.as_mut().expect("the first record came before");
                    assert!(from_bytes + len_bytes <= offset_bytes);
                    again.extend(encoder.repeat(offset_bytes, len_bytes, from_bytes));
                }
                Ok(Some(Record::End(_))) => {
                    again.extend(encoder.take().expect("there is one end").end());
                }
            }
        }
    }
    (again, decoder.finish().map(|()| decoder.totals()))
}

/// `bytes` with the beginning, numbers and checksums that a stream has, which a fuzzer would not
/// find.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = MAGIC.to_vec();
    let is_as_stored = bytes.get(MAGIC.len()) == Some(&(VERSION_AS_STORED as u8));
    let (version, features) =
        if is_as_stored { (VERSION_AS_STORED, COMPRESSED | REPEATED) } else { (VERSION, 0) };
    sealed.extend(version.to_le_bytes());
    sealed.extend(features.to_le_bytes());
    sealed.extend(bytes.iter().skip(PREAMBLE_BYTES));
    let mut before = crc64(&sealed[..PREAMBLE_BYTES]);
    let (mut at, mut number) = (PREAMBLE_BYTES, 0u64);
    while let Some(head) = sealed.get(at..at + RECORD_BYTES) {
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let end = (at + RECORD_BYTES + len).min(sealed.len());
        sealed[at + 8..at + 16].copy_from_slice(&number.to_le_bytes());
        let (fields, payload) = (&sealed[at..at + 32], &sealed[at + RECORD_BYTES..end]);
        before = crc64_of_parts(&[&before.to_le_bytes(), fields, payload]);
        sealed[at + 32..at + 40].copy_from_slice(&before.to_le_bytes());
        (at, number) = (end, number + 1);
    }
    sealed
}

/// A stream.
pub fn send_stream(bytes: &[u8]) {
    check(bytes);
    check(&sealed(bytes));
}

fn check(bytes: &[u8]) {
    let whole = read(bytes, bytes.len());
    assert_eq!(read(bytes, 7), whole);
    if let (again, Ok(_)) = &whole {
        let (twice, outcome) = read(again, 100);
        assert!(outcome.is_ok() && twice == *again);
    }
}

/// A resume token.
pub fn resume_token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(token) = ResumeToken::parse(text) {
        assert_eq!(ResumeToken::parse(&token.to_text()), Some(token));
    }
}
