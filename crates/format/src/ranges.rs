//! Ranges of segments in the configuration: a list while they are few, else a bit for each segment.
//!
//! A device that was away for a while misses every other segment, by and by: tens of thousands of
//! ranges, which as a list fill the configuration's slot.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Ranges, first and one past last, in rising order without touching each other.
type Ranges = [(u32, u32)];

/// More than so many are written as bits.
const LISTED: usize = 256;
/// Most segments of a pool.
const SEGMENTS: u32 = 1 << 20;

#[derive(Deserialize)]
#[serde(untagged)]
enum Kept {
    List(Vec<(u32, u32)>),
    Bits(String),
}

pub(crate) fn serialize<S: Serializer>(ranges: &Ranges, to: S) -> Result<S::Ok, S::Error> {
    if ranges.len() <= LISTED {
        return ranges.serialize(to);
    }
    to.serialize_str(&as_bits(ranges))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(u32, u32)>, D::Error> {
    match Kept::deserialize(from)? {
        Kept::List(ranges) => Ok(ranges),
        Kept::Bits(text) => of_bits(&text).ok_or_else(|| D::Error::custom("no set of segments")),
    }
}

/// The first segment, a colon, and four segments in each hexadecimal digit, the lowest bit first.
fn as_bits(ranges: &Ranges) -> String {
    let first = ranges.iter().map(|(first, _)| *first).min().unwrap_or(0);
    let end = ranges.iter().map(|(_, end)| *end).max().unwrap_or(0);
    let mut digits = vec![0u8; (end.saturating_sub(first) as usize).div_ceil(4)];
    for at in ranges.iter().flat_map(|(first, end)| *first..*end) {
        digits[((at - first) / 4) as usize] |= 1 << ((at - first) % 4);
    }
    let hex = digits.into_iter().map(|digit| char::from_digit(u32::from(digit), 16).unwrap_or('0'));
    format!("{first}:{}", hex.collect::<String>())
}

fn of_bits(text: &str) -> Option<Vec<(u32, u32)>> {
    let (first, hex) = text.split_once(':')?;
    let first = first.parse::<u32>().ok().filter(|first| *first < SEGMENTS)?;
    if hex.len() > (SEGMENTS / 4) as usize {
        return None;
    }
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    let mut at = first;
    for digit in hex.chars() {
        let digit = digit.to_digit(16)?;
        for bit in 0..4 {
            if digit & (1 << bit) != 0 {
                match ranges.last_mut() {
                    Some((_, end)) if *end == at => *end += 1,
                    _ => ranges.push((at, at + 1)),
                }
            }
            at += 1;
        }
    }
    Some(ranges)
}

#[cfg(test)]
mod tests;
