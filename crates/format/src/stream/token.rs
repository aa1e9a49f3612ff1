//! Resume tokens: where an interrupted stream goes on, as one word.

use crate::checksum::crc64;
use crate::{Decoder, Encoder};

/// What the words begin with: the version.
const PREFIX: &str = "1-";

/// Where a stream goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    /// Identity of the snapshot.
    pub guid: u64,
    /// Identity of its base; 0 for a whole volume.
    pub base_guid: u64,
    /// Up to where it has been received.
    pub start_bytes: u64,
    /// `POOL/VOL@SNAP` that it was sent from.
    pub source: String,
}

impl ResumeToken {
    /// The token as a word.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = Encoder::new();
        out.u64(self.guid).u64(self.base_guid).u64(self.start_bytes).string(&self.source);
        let body = out.finish();
        let sum = crc64(&body) as u32;
        let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{PREFIX}{sum:08x}-{hex}")
    }

    /// From the word; `None` when it is none, or was not copied right.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (sum, hex) = text.trim().strip_prefix(PREFIX)?.split_once('-')?;
        if !hex.is_ascii() || hex.len() % 2 != 0 {
            return None;
        }
        let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        let body: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>()?;
        if u32::from_str_radix(sum, 16).ok()? != crc64(&body) as u32 {
            return None;
        }
        let mut input = Decoder::new("resume token", &body);
        Some(Self {
            guid: input.u64().ok()?,
            base_guid: input.u64().ok()?,
            start_bytes: input.u64().ok()?,
            source: input.string().ok()?,
        })
    }
}
