//! Fingerprints of de-duplicated blocks in the map journal. They are a help to find contents again;
//! without them nothing is lost but space.

use crate::{Decoder, Encoder, FormatError};

const WHAT: &str = "fingerprints";
/// Bytes of a fingerprint.
pub const FINGERPRINT_BYTES: usize = 16;
/// Bytes of a record: a fingerprint and a virtual block number.
pub const RECORD_BYTES: usize = FINGERPRINT_BYTES + 5;
/// Bytes before the records.
const HEAD_BYTES: usize = 8;

/// The payload of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprints {
    /// The virtual block number that the next new content gets. The largest of all frames counts.
    pub next: u64,
    /// Fingerprints, and the virtual blocks that have them.
    pub records: Vec<([u8; FINGERPRINT_BYTES], u64)>,
}

impl Fingerprints {
    /// Records that fit into a payload of so many bytes.
    #[must_use]
    pub const fn fit(payload_bytes: usize) -> usize {
        payload_bytes.saturating_sub(HEAD_BYTES) / RECORD_BYTES
    }

    /// As a payload.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u64(self.next);
        for (fingerprint, block) in &self.records {
            out.bytes(fingerprint).u40(*block);
        }
        out.finish()
    }

    /// From a payload.
    pub fn decode(payload: &[u8]) -> Result<Self, FormatError> {
        let mut input = Decoder::new(WHAT, payload);
        let mut found = Self { next: input.u64()?, records: Vec::new() };
        while !input.rest().is_empty() {
            let mut fingerprint = [0; FINGERPRINT_BYTES];
            fingerprint.copy_from_slice(input.bytes(FINGERPRINT_BYTES)?);
            found.records.push((fingerprint, input.u40()?));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_read_as_they_were_written() {
        let records = vec![([7; FINGERPRINT_BYTES], 1), ([8; FINGERPRINT_BYTES], (1 << 40) - 1)];
        let all = Fingerprints { next: u64::MAX, records };
        let bytes = all.encode();
        assert_eq!(bytes.len(), HEAD_BYTES + 2 * RECORD_BYTES);
        assert_eq!(Fingerprints::fit(bytes.len()), 2);
        assert_eq!(Fingerprints::decode(&bytes).unwrap(), all);
        for short in [0, 7, 9, bytes.len() - 1] {
            Fingerprints::decode(&bytes[..short]).unwrap_err();
        }
        assert_eq!(Fingerprints::decode(&bytes[..8]).unwrap().records, []);
    }
}
