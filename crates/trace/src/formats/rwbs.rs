//! The letters by which the kernel's tools name a request: `WS`, `FWFSM`, `R`, `DS`.

use crate::event::{Flags, Op};

/// Operation and attributes of such a word; `None` when it is none. `has_data`: whether the
/// request has a length, for a preflush without data is a flush.
pub(crate) fn parse(word: &[u8], has_data: bool) -> Option<(Op, Flags)> {
    let mut flags = Flags::default();
    let mut rest = word;
    let mut op = None;
    // A leading F is a preflush, unless it is all there is, or stands for the operation itself.
    if let [b'F', others @ ..] = rest {
        flags = flags.with(Flags::PREFLUSH);
        rest = others;
        if rest.is_empty() {
            op = Some(Op::Flush);
        }
    }
    if op.is_none() {
        let (first, others) = rest.split_first()?;
        op = Some(match first {
            b'R' => Op::Read,
            b'W' => Op::Write,
            b'D' => Op::Discard,
            b'F' => Op::Flush,
            b'N' | b'Z' => Op::Other,
            _ => return None,
        });
        rest = others;
    }
    for letter in rest {
        flags = match letter {
            b'F' => flags.with(Flags::FUA),
            b'S' => flags.with(Flags::SYNC),
            b'M' => flags.with(Flags::META),
            b'A' => flags.with(Flags::AHEAD),
            b'A'..=b'Z' => flags,
            _ => return None,
        };
    }
    let op = op?;
    let is_flush = flags.has(Flags::PREFLUSH) && !has_data;
    Some((if is_flush { Op::Flush } else { op }, flags))
}

#[cfg(test)]
mod tests;
