//! A sector of a record: 512 bytes that say what they are.
//!
//! What enters: a record's number. What leaves: its bytes, and from bytes what they are. What
//! always holds: all bytes of a sector follow from its header. docs/power-cut.md has the table.

use crate::content::Numbers;
use crate::power_cut::CutPlan;

/// Bytes of a sector.
pub(crate) const SECTOR_BYTES: usize = 512;
const MAGIC: [u8; 8] = *b"FBYCUT01";
const CHECKSUM_AT: usize = 52;
const HEADER_BYTES: usize = 56;

/// What a sector says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The cycle's random number.
    pub id: u64,
    /// Where the record begins, in bytes.
    pub offset_bytes: u64,
    /// The record's number of its writer, from 1.
    pub sequence: u64,
    /// Records up to this number were durable when this one was written.
    pub watermark: u64,
    /// The writer.
    pub writer: u16,
    /// The sector's number in its record.
    pub index: u16,
}

/// What was found in a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sector {
    /// A whole sector of a record.
    Whole(Header),
    /// Only the front is of a record, and the rest is of something else.
    Shorn,
    /// A sector of a record in which some bytes are wrong.
    Corrupt,
    /// No record.
    Other,
}

fn bytes_of(header: &Header) -> [u8; SECTOR_BYTES] {
    let mut out = [0; SECTOR_BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..16].copy_from_slice(&header.id.to_le_bytes());
    out[16..24].copy_from_slice(&header.offset_bytes.to_le_bytes());
    out[24..32].copy_from_slice(&header.sequence.to_le_bytes());
    out[32..40].copy_from_slice(&header.watermark.to_le_bytes());
    out[40..42].copy_from_slice(&header.writer.to_le_bytes());
    out[42..44].copy_from_slice(&header.index.to_le_bytes());
    // Pseudo-random, so that a device cannot compress it and each sector differs from all others.
    let mut numbers = Numbers::new(
        header.id
            ^ header.sequence.rotate_left(20)
            ^ u64::from(header.writer).rotate_left(48)
            ^ u64::from(header.index),
    );
    for word in out[HEADER_BYTES..].chunks_mut(8) {
        word.copy_from_slice(&numbers.next().to_le_bytes()[..word.len()]);
    }
    let sum = checksum(&out);
    out[CHECKSUM_AT..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Over the whole sector but the checksum itself.
fn checksum(sector: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&sector[..CHECKSUM_AT]);
    digest.update(&sector[HEADER_BYTES..]);
    digest.finalize() as u32
}

/// Fills `record` with the record of this number.
pub(crate) fn fill_record(
    plan: &CutPlan,
    writer: u16,
    sequence: u64,
    watermark: u64,
    record: &mut [u8],
) {
    let offset_bytes = plan.offset_bytes(plan.slot(writer, sequence));
    for (index, sector) in record.chunks_mut(SECTOR_BYTES).enumerate() {
        let (id, index) = (plan.id, index as u16);
        let header = Header { id, offset_bytes, sequence, watermark, writer, index };
        sector.copy_from_slice(&bytes_of(&header));
    }
}

/// Says what a sector is.
pub(crate) fn parse(sector: &[u8]) -> Sector {
    /// Fewer wrong bytes at the end than these say nothing of where a write ended.
    const LEAST_SHORN_BYTES: usize = 16;
    if sector[..8] != MAGIC {
        return Sector::Other;
    }
    let u64_at = |at: usize| u64::from_le_bytes(sector[at..at + 8].try_into().expect("8 bytes"));
    let u16_at = |at: usize| u16::from_le_bytes(sector[at..at + 2].try_into().expect("2 bytes"));
    let header = Header {
        id: u64_at(8),
        offset_bytes: u64_at(16),
        sequence: u64_at(24),
        watermark: u64_at(32),
        writer: u16_at(40),
        index: u16_at(42),
    };
    let whole = bytes_of(&header);
    if sector == whole {
        return Sector::Whole(header);
    }
    let first_wrong = (0..SECTOR_BYTES).find(|&at| sector[at] != whole[at]).unwrap_or(0);
    let behind = SECTOR_BYTES - first_wrong;
    let wrong = (first_wrong..SECTOR_BYTES).filter(|&at| sector[at] != whole[at]).count();
    // What lies behind the end of a shorn write is other data, which agrees by chance only.
    let is_other_data = wrong * 4 >= behind * 3 && behind >= LEAST_SHORN_BYTES;
    if first_wrong > HEADER_BYTES && is_other_data { Sector::Shorn } else { Sector::Corrupt }
}

/// How many bytes of `sector` are as the sector of this record and index has them; its watermark
/// is not known, so the header is left out.
pub(crate) fn equal_bytes(plan: &CutPlan, writer: u16, sequence: u64, at: (u16, &[u8])) -> usize {
    let (index, sector) = at;
    let offset_bytes = plan.offset_bytes(plan.slot(writer, sequence));
    let header = Header { id: plan.id, offset_bytes, sequence, watermark: 0, writer, index };
    let whole = bytes_of(&header);
    (HEADER_BYTES..SECTOR_BYTES).filter(|&at| sector[at] == whole[at]).count()
}
