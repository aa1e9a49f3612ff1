//! Compression: the stored size of a unit in a compressing controller.

use lz4_flex::block::{compress_into, get_maximum_output_size};

use crate::model::Content;

/// Measures content against one unit's size.
#[derive(Clone, Debug)]
pub(crate) struct Compressor {
    unit_bytes: usize,
    granule_bytes: usize,
    scratch: Vec<u8>,
}

impl Compressor {
    pub(crate) fn new(unit_bytes: u32, granule_bytes: u32) -> Self {
        let unit_bytes = unit_bytes as usize;
        Self {
            unit_bytes,
            granule_bytes: granule_bytes as usize,
            scratch: vec![0; get_maximum_output_size(unit_bytes)],
        }
    }

    /// Granules that a unit fills when its data is the part `from..to` of a request's content. A
    /// part of a unit stands for the whole unit.
    pub(crate) fn granules(&mut self, content: Content<'_>, from: usize, to: usize) -> u32 {
        let whole = (self.unit_bytes / self.granule_bytes) as u32;
        let share = match content {
            Content::Random => return whole,
            Content::Stored(permille) => f64::from(permille) / 1000.0,
            Content::Bytes(bytes) => {
                let Some(part) = bytes.get(from..to).filter(|part| !part.is_empty()) else {
                    return whole;
                };
                match compress_into(part, &mut self.scratch) {
                    Ok(stored) => stored as f64 / part.len() as f64,
                    // Cannot happen with a buffer of the maximum size; incompressible is safe.
                    Err(_) => return whole,
                }
            }
        };
        let granules = (share * f64::from(whole)).ceil() as u32;
        granules.clamp(1, whole)
    }
}
