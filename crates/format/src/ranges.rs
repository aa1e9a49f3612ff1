//! Ranges of segments in the configuration: a list of a few ranges, or a bitmap of many.
//!
//! A device that was absent for a while may miss every other segment: tens of thousands of ranges,
//! which as a list would fill the configuration's slot.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Ranges, first and one past last, in rising order without touching each other.
type Ranges = [(u32, u32)];

/// More ranges than this are written as a bitmap.
const MAX_LISTED_RANGES: usize = 256;
/// Segments that a pool can have.
const MAX_SEGMENTS: u32 = 1 << 20;

#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    List(Vec<(u32, u32)>),
    Bitmap(String),
}

pub(crate) fn serialize<S: Serializer>(ranges: &Ranges, to: S) -> Result<S::Ok, S::Error> {
    if ranges.len() <= MAX_LISTED_RANGES {
        return ranges.serialize(to);
    }
    to.serialize_str(&to_bitmap(ranges))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(u32, u32)>, D::Error> {
    match Stored::deserialize(from)? {
        Stored::List(ranges) => Ok(ranges),
        Stored::Bitmap(text) => {
            from_bitmap(&text).ok_or_else(|| D::Error::custom("no set of segments"))
        }
    }
}

/// The first segment, a colon, and four segments in each hexadecimal digit, the lowest bit first.
fn to_bitmap(ranges: &Ranges) -> String {
    let first = ranges.iter().map(|(first, _)| *first).min().unwrap_or(0);
    let end = ranges.iter().map(|(_, end)| *end).max().unwrap_or(0);
    let mut digits = vec![0u8; (end.saturating_sub(first) as usize).div_ceil(4)];
    for at in ranges.iter().flat_map(|(first, end)| *first..*end) {
        digits[((at - first) / 4) as usize] |= 1 << ((at - first) % 4);
    }
    let hex = digits.into_iter().map(|digit| char::from_digit(u32::from(digit), 16).unwrap_or('0'));
    format!("{first}:{}", hex.collect::<String>())
}

fn from_bitmap(text: &str) -> Option<Vec<(u32, u32)>> {
    let (first, hex) = text.split_once(':')?;
    let first = first.parse::<u32>().ok().filter(|first| *first < MAX_SEGMENTS)?;
    if hex.len() > (MAX_SEGMENTS / 4) as usize {
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
