//! The payload of a record of compressed data: units, one after the other.

use forebay_units::BLOCK_LEN;

use crate::packed::{Codec, MAX_UNIT_BLOCKS};
use crate::{Decoder, Encoder, FormatError, FormatFlaw};

const WHAT: &str = "record of compressed data";

/// One to four blocks, as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredUnit<'a> {
    /// How they are compressed; `None`: not at all.
    pub codec: Option<Codec>,
    /// Their number.
    pub blocks: u8,
    /// The compressed bytes, or the blocks.
    pub bytes: &'a [u8],
}

impl StoredUnit<'_> {
    /// Adds the unit to a payload.
    pub fn encode(&self, out: &mut Encoder) {
        let len_bytes = u16::try_from(self.bytes.len()).expect("at most four blocks");
        out.u8(self.codec.map_or(0, Codec::number)).u8(self.blocks).u16(len_bytes);
        out.bytes(self.bytes);
    }
}

/// The units of a payload, in order.
pub fn units_of(payload: &[u8]) -> Result<Vec<StoredUnit<'_>>, FormatError> {
    let mut input = Decoder::new(WHAT, payload);
    let mut units = Vec::new();
    while !input.rest().is_empty() {
        let (kind, blocks, len_bytes) = (input.u8()?, input.u8()?, usize::from(input.u16()?));
        let codec = if kind == 0 { None } else { Codec::from_number(kind) };
        let is_known = kind == 0 || codec.is_some();
        let plain = usize::from(blocks) * BLOCK_LEN;
        let fits = if kind == 0 { len_bytes == plain } else { (1..plain).contains(&len_bytes) };
        if !is_known || !(1..=MAX_UNIT_BLOCKS).contains(&usize::from(blocks)) || !fits {
            return Err(input.error(FormatFlaw::UnknownKind { kind: kind.into() }));
        }
        units.push(StoredUnit { codec, blocks, bytes: input.bytes(len_bytes)? });
    }
    Ok(units)
}
