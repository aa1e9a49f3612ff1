#![doc = include_str!("../README.md")]

use std::cell::RefCell;
use std::fmt;

use forebay_format::packed::Codec;
use forebay_units::BLOCK_LEN;
use zstd::bulk::{Compressor, Decompressor};

/// How the blocks of a volume are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    Off,
    /// With LZ4.
    Lz4,
    /// With Zstandard at a level from 1 to 19.
    Zstd(i32),
}

/// The level of `zstd` without a number.
const USUAL_LEVEL: i32 = 3;
/// The highest level.
const MAX_LEVEL: i32 = 19;
/// Levels from here on are tried only after faster ones have saved something.
const SLOW_LEVEL: i32 = 3;

impl Compression {
    /// The usual way to get units of this codec.
    #[must_use]
    pub fn like(codec: Codec) -> Self {
        match codec {
            Codec::Lz4 => Self::Lz4,
            Codec::Zstd => Self::Zstd(USUAL_LEVEL),
        }
    }

    /// From the property's value.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "off" => Some(Self::Off),
            "lz4" => Some(Self::Lz4),
            "zstd" => Some(Self::Zstd(USUAL_LEVEL)),
            _ => {
                let digits = value.strip_prefix("zstd-")?;
                let level: i32 = digits.parse().ok()?;
                let is_plain = digits == level.to_string();
                ((1..=MAX_LEVEL).contains(&level) && is_plain).then_some(Self::Zstd(level))
            }
        }
    }
}

/// Compressed bytes that are no unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAUnit;

impl fmt::Display for NotAUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the compressed bytes are not those of so many blocks")
    }
}

impl std::error::Error for NotAUnit {}

/// Most bytes that a unit of `len_bytes` may have when it is compressed.
fn most_bytes(len_bytes: usize) -> usize {
    len_bytes * 7 / 8 - ENTRY_BYTES
}

/// What a unit takes beside its compressed bytes.
const ENTRY_BYTES: usize = 12;

struct Encoder {
    level: i32,
    compressor: Compressor<'static>,
}

thread_local! {
    /// The contexts of this thread: making one takes longer than compressing a unit.
    static ENCODER: RefCell<Option<Encoder>> = const { RefCell::new(None) };
    static DECODER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

fn zstd_within(level: i32, data: &[u8], most: usize) -> Option<Vec<u8>> {
    ENCODER.with_borrow_mut(|kept| {
        if kept.as_ref().is_none_or(|encoder| encoder.level != level) {
            let mut compressor = Compressor::new(level).ok()?;
            compressor.include_contentsize(false).ok()?;
            *kept = Some(Encoder { level, compressor });
        }
        let compressor = &mut kept.as_mut()?.compressor;
        let mut out = vec![0; most];
        // Without room for the result there is an error, and the unit is not worth it.
        let len = compressor.compress_to_buffer(data, &mut out[..]).ok()?;
        out.truncate(len);
        Some(out)
    })
}

fn lz4_within(data: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; lz4_flex::block::get_maximum_output_size(data.len())];
    let len = lz4_flex::block::compress_into(data, &mut out).ok()?;
    out.truncate(len);
    out.shrink_to_fit();
    (len <= most).then_some(out)
}

/// Compresses a unit. `None` when that does not save an eighth.
#[must_use]
pub fn compress(how: Compression, data: &[u8]) -> Option<(Codec, Vec<u8>)> {
    let most = most_bytes(data.len());
    match how {
        Compression::Off => None,
        Compression::Lz4 => Some((Codec::Lz4, lz4_within(data, most)?)),
        Compression::Zstd(level) => {
            if level >= SLOW_LEVEL && lz4_within(data, most).is_none() {
                zstd_within(1, data, most)?;
            }
            Some((Codec::Zstd, zstd_within(level, data, most)?))
        }
    }
}

/// The bytes of a unit of `blocks` blocks.
pub fn decompress(codec: Codec, bytes: &[u8], blocks: usize) -> Result<Vec<u8>, NotAUnit> {
    let mut out = vec![0; blocks * BLOCK_LEN];
    let len = match codec {
        Codec::Lz4 => lz4_flex::block::decompress_into(bytes, &mut out).map_err(|_| NotAUnit)?,
        Codec::Zstd => DECODER.with_borrow_mut(|kept| {
            if kept.is_none() {
                *kept = Some(Decompressor::new().map_err(|_| NotAUnit)?);
            }
            let decoder = kept.as_mut().ok_or(NotAUnit)?;
            decoder.decompress_to_buffer(bytes, &mut out[..]).map_err(|_| NotAUnit)
        })?,
    };
    if len == out.len() { Ok(out) } else { Err(NotAUnit) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Compression; 4] =
        [Compression::Lz4, Compression::Zstd(1), Compression::Zstd(3), Compression::Zstd(19)];

    /// Bytes that have no pattern.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn text(blocks: usize) -> Vec<u8> {
        let words = b"a durable write is answered when the log has it; ".iter().copied();
        words.cycle().take(blocks * BLOCK_LEN).collect()
    }

    #[test]
    fn values_of_the_property() {
        assert_eq!(Compression::parse("off"), Some(Compression::Off));
        assert_eq!(Compression::parse("lz4"), Some(Compression::Lz4));
        assert_eq!(Compression::parse("zstd"), Some(Compression::Zstd(3)));
        assert_eq!(Compression::parse("zstd-19"), Some(Compression::Zstd(19)));
        for bad in ["", "on", "zstd-0", "zstd-20", "zstd-", "zstd-+3", "zstd-03", "lz4-1"] {
            assert_eq!(Compression::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn units_come_back_and_noise_is_not_compressed() {
        for how in ALL {
            for blocks in 1..=4 {
                let data = text(blocks);
                let (codec, bytes) = compress(how, &data).unwrap();
                assert!(bytes.len() <= most_bytes(data.len()), "{how:?}");
                assert_eq!(compress(Compression::like(codec), &data).unwrap().0, codec);
                assert_eq!(decompress(codec, &bytes, blocks), Ok(data));
                assert_eq!(decompress(codec, &bytes, blocks + 1), Err(NotAUnit));
                assert_eq!(compress(how, &noise(blocks * BLOCK_LEN)), None, "{how:?}");
            }
        }
        assert_eq!(compress(Compression::Off, &text(1)), None);
    }

    #[test]
    fn bytes_of_few_kinds_are_found_by_entropy_alone() {
        // LZ4 finds no repetition here.
        let data: Vec<u8> = noise(4 * BLOCK_LEN).iter().map(|byte| byte & 31).collect();
        assert_eq!(compress(Compression::Lz4, &data), None);
        let (codec, bytes) = compress(Compression::Zstd(9), &data).unwrap();
        assert_eq!(decompress(codec, &bytes, 4), Ok(data));
    }

    #[test]
    fn a_unit_is_compressed_at_its_own_level_whatever_the_thread_did_before() {
        let words: [&[u8]; 5] = [b"durable ", b"write ", b"log ", b"answered ", b"segment "];
        let chosen = noise(BLOCK_LEN).into_iter();
        let data: Vec<u8> =
            chosen.flat_map(|byte| words[usize::from(byte) % words.len()]).copied().collect();
        let len =
            |level| compress(Compression::Zstd(level), &data[..4 * BLOCK_LEN]).unwrap().1.len();
        let (fast, slow) = (len(1), len(19));
        assert!(slow < fast, "{slow} of {fast}");
        assert_eq!((len(1), len(19)), (fast, slow));
    }

    proptest! {
        #[test]
        fn foreign_bytes_are_an_error_or_a_unit(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            cut in 0_usize..60,
        ) {
            for codec in [Codec::Lz4, Codec::Zstd] {
                let _ = decompress(codec, &bytes, 1);
            }
            for how in ALL {
                let (codec, right) = compress(how, &text(2)).unwrap();
                let cut = right.len().saturating_sub(cut + 1);
                prop_assert_eq!(decompress(codec, &right[..cut], 2), Err(NotAUnit));
            }
        }
    }
}
