//! Alternatives: every possible version of a block, for a caller that knows its checksum.
//!
//! Only this file reads untrusted columns: those of failed members, and those that missed a write.
//! A segment's rows are written once in its life, so a version that the checksum accepts is right.
//! After more failures than parity covers, an untrusted column may be the only source.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_device::{DeviceError, IoBuf};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr};

use crate::Array;
use crate::error::ArrayError;
use crate::geometry::ColumnRange;
use crate::kernel::ParityKernel;
use crate::read::SegmentSource;

/// Versions of one block, best guess first: the versions that members hold, then those computed
/// from the other columns. Each computation distrusts a set of columns as large as parity allows.
pub struct Alternatives {
    /// The block itself, as members hold it.
    direct: VecDeque<IoBuf>,
    parity: Option<FromParity>,
    /// Versions given so far.
    tried: usize,
}

/// Computed versions.
struct FromParity {
    kernel: Arc<dyn ParityKernel>,
    role: usize,
    /// The versions that members hold of each role: usually one, none when unreadable, several
    /// when members that replace each other differ.
    versions: Vec<Vec<IoBuf>>,
    /// Sets of distrusted roles.
    distrusted: Vec<Vec<usize>>,
    next_set: usize,
    /// For each combination, the roles that use a later version than their first, and which
    /// version. Combinations with the fewest such roles come first.
    picks: Vec<Vec<(usize, usize)>>,
    next_pick: usize,
}

/// Most versions computed of one block. When many members are replaced at once, each has two
/// versions, and trying every combination would take too long.
const MAX_COMPUTED_VERSIONS: usize = 1 << 14;

/// Most versions that are tried before one that fits is written to devices. A wrong version fits
/// the checksum of a block, which has 40 bits, once in 2^40: with so many, once in 2^32 blocks that
/// have no right version. All sets of columns of a group of 24 are fewer.
const MAX_WRITTEN_BACK: usize = 1 << 8;

impl FromParity {
    fn new(
        kernel: Arc<dyn ParityKernel>,
        role: usize,
        versions: Vec<Vec<IoBuf>>,
        distrusted: Vec<Vec<usize>>,
    ) -> Self {
        let max_picks = (MAX_COMPUTED_VERSIONS / distrusted.len().max(1)).max(1);
        let mut picks: Vec<Vec<(usize, usize)>> = vec![Vec::new()];
        let mut at = 0;
        // Each combination is extended by a deviation in one later role.
        while at < picks.len() && picks.len() < max_picks {
            let later = picks[at].last().map_or(0, |(role, _)| role + 1);
            // The versions of the wanted role itself are never used.
            for other in (later..versions.len()).filter(|other| *other != role) {
                for version in 1..versions[other].len() {
                    let mut pick = picks[at].clone();
                    pick.push((other, version));
                    picks.push(pick);
                }
            }
            at += 1;
        }
        picks.truncate(max_picks);
        Self { kernel, role, versions, distrusted, next_set: 0, picks, next_pick: 0 }
    }

    fn next(&mut self) -> Option<IoBuf> {
        if self.next_set == self.distrusted.len() {
            self.next_set = 0;
            self.next_pick += 1;
        }
        let pick = self.picks.get(self.next_pick)?;
        let wrong = &self.distrusted[self.next_set];
        self.next_set += 1;
        let trusted = |role: usize| {
            let other = pick.iter().find(|(at, _)| *at == role);
            let version = self.versions[role].get(other.map_or(0, |(_, version)| *version))?;
            (role != self.role && !wrong.contains(&role)).then_some(&version[..])
        };
        let columns: Vec<Option<&[u8]>> = (0..self.versions.len()).map(trusted).collect();
        let mut out = IoBuf::recycled(BLOCK_LEN);
        let solved = self.kernel.reconstruct(&columns, &[self.role], &mut [&mut out]);
        solved.expect("no more columns are left out than parity allows");
        Some(out)
    }
}

impl Iterator for Alternatives {
    type Item = IoBuf;

    fn next(&mut self) -> Option<IoBuf> {
        self.tried += 1;
        self.direct.pop_front().or_else(|| self.parity.as_mut()?.next())
    }
}

impl Alternatives {
    /// Whether so few versions were tried that the last one may be written to devices if a checksum
    /// of 40 bits accepts it.
    #[must_use]
    pub fn may_be_written_back(&self) -> bool {
        self.tried <= MAX_WRITTEN_BACK
    }
}

/// Every subset of `roles` with `size` members.
fn sets(roles: &[usize], size: usize) -> Vec<Vec<usize>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in roles.iter().enumerate() {
        for mut rest in sets(&roles[at + 1..], size - 1) {
            rest.push(*first);
            all.push(rest);
        }
    }
    all
}

impl Array {
    /// Every possible version of one block. Fails when there is none.
    pub async fn alternatives(&self, addr: BlockAddr) -> Result<Alternatives, ArrayError> {
        let group = self.group_of(addr.segment())?;
        let geometry = group.geometry();
        let limit = geometry.blocks_per_segment();
        if addr.block() >= limit {
            let (segment, first) = (addr.segment(), addr.block());
            return Err(ArrayError::OutOfRange { segment, first, count: 1, limit });
        }
        let index = geometry.index_of(addr.segment());
        let source = &SegmentSource { group: &group, index, excluded: &[] };
        let (role, start_bytes) = geometry.locate(addr.block());
        let end_bytes = start_bytes + BLOCK_BYTES;

        // A mirror's columns are all role 0.
        let roles = if group.kernel.is_some() { geometry.members } else { geometry.data_columns() };
        let reads = (0..roles).map(|role| async move {
            let range = ColumnRange { role, start_bytes, end_bytes };
            let trusted = source.group.sources(source.index, role);
            let trusted = trusted.iter().map(|member| self.read_member(source, member, range));
            let mut outcomes = rt::join_all(trusted).await;
            let offset_bytes = geometry.column_start_bytes(source.index) + start_bytes;
            for member in source.group.suspects(source.index, role) {
                outcomes.push(member.read(offset_bytes, BLOCK_BYTES).await);
            }
            outcomes
        });
        let mut causes: Vec<DeviceError> = Vec::new();
        let mut versions: Vec<Vec<IoBuf>> = Vec::new();
        for outcomes in rt::join_all(reads).await {
            let mut distinct: Vec<IoBuf> = Vec::new();
            for outcome in outcomes {
                match outcome {
                    Ok(buf) if distinct.iter().any(|other| other[..] == buf[..]) => {}
                    Ok(buf) => distinct.push(buf),
                    Err(cause) => causes.push(cause),
                }
            }
            versions.push(distinct);
        }

        let have = versions.iter().filter(|versions| !versions.is_empty()).count();
        let need = geometry.data_columns();
        let direct: VecDeque<IoBuf> =
            versions[role].iter().map(|buf| IoBuf::copy_of(buf)).collect();
        let others: Vec<usize> =
            (0..roles).filter(|other| *other != role && !versions[*other].is_empty()).collect();
        let parity = match group.kernel.clone() {
            // Leaving out as many columns as possible covers every smaller set, because right
            // columns may be left out too.
            Some(kernel) if others.len() >= need => {
                let distrusted = sets(&others, others.len() - need);
                Some(FromParity::new(kernel, role, versions, distrusted))
            }
            _ => None,
        };
        if direct.is_empty() && parity.is_none() {
            return Err(ArrayError::Unreadable { addr, blocks: 1, have, need, causes });
        }
        Ok(Alternatives { direct, parity, tried: 0 })
    }
}

#[cfg(test)]
mod tests;
