//! Lines of an append-only log: a mark, the line's number from 0, the CRC-32C in hexadecimal of
//! number, a space and JSON, and the JSON; separated by spaces. A line counts whole or not at all.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The line of the record of this number, with its line feed.
pub(crate) fn encode_line(mark: &str, number: usize, record: &impl Serialize) -> String {
    let json = serde_json::to_string(record).expect("plain data");
    let body = format!("{number} {json}");
    format!("{mark} {number} {:08x} {json}\n", checksum(&body))
}

/// The record of a line; `None` when it is cut off, damaged, or not of this number. Number and
/// checksum have one spelling: a bit that makes `a` of the checksum `A` is noticed too.
pub(crate) fn decode_line<T: DeserializeOwned>(
    mark: &str,
    number: usize,
    line: &[u8],
) -> Option<T> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let mut words = line.splitn(4, ' ');
    if words.next()? != mark || words.next()? != number.to_string() {
        return None;
    }
    let (sum, json) = (words.next()?, words.next()?);
    if sum != format!("{:08x}", checksum(&format!("{number} {json}"))) {
        return None;
    }
    serde_json::from_str(json).ok()
}

fn checksum(body: &str) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, body.as_bytes()) as u32
}
