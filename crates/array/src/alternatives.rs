//! What a block could have been, for those who know its checksum.
//!
//! Here, and only here, columns are read that may not be trusted: those of failed members, and
//! those that missed a write. A segment's rows are written once in its life, so what a checksum
//! accepts of them is right; and after more failures than parity covers it may be all there is.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_device::{DeviceError, IoBuf};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr};

use crate::Array;
use crate::error::ArrayError;
use crate::geometry::ColumnRange;
use crate::kernel::ParityKernel;
use crate::read::ColumnReads;

/// Versions of one block, best guess first: what the members say, then what follows from the
/// others when any set of them, as large as parity allows, is taken for wrong.
pub struct Alternatives {
    /// What members hold as the block itself.
    direct: VecDeque<IoBuf>,
    parity: Option<FromParity>,
}

/// Versions that are computed.
struct FromParity {
    kernel: Arc<dyn ParityKernel>,
    role: usize,
    /// What members hold of each role: mostly one version, none when unreadable, several when
    /// members that replace each other differ.
    versions: Vec<Vec<IoBuf>>,
    /// Sets of roles that are taken for wrong.
    distrusted: Vec<Vec<usize>>,
    next_set: usize,
    /// Roles that contribute another than their first version, and which, fewest first.
    picks: Vec<Vec<(usize, usize)>>,
    next_pick: usize,
}

/// Most versions that are computed of one block. Where many members are being replaced at once
/// every one of them has two versions, and all combinations of those would take for ever.
const COMPUTED_MAX: usize = 1 << 14;

impl FromParity {
    fn new(
        kernel: Arc<dyn ParityKernel>,
        role: usize,
        versions: Vec<Vec<IoBuf>>,
        distrusted: Vec<Vec<usize>>,
    ) -> Self {
        let most = (COMPUTED_MAX / distrusted.len().max(1)).max(1);
        let mut picks: Vec<Vec<(usize, usize)>> = vec![Vec::new()];
        let mut at = 0;
        // Each one is the start of those that deviate in one more, later role.
        while at < picks.len() && picks.len() < most {
            let later = picks[at].last().map_or(0, |(role, _)| role + 1);
            // The versions of the wanted role itself are never used here.
            for other in (later..versions.len()).filter(|other| *other != role) {
                for version in 1..versions[other].len() {
                    let mut pick = picks[at].clone();
                    pick.push((other, version));
                    picks.push(pick);
                }
            }
            at += 1;
        }
        picks.truncate(most);
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
        self.direct.pop_front().or_else(|| self.parity.as_mut()?.next())
    }
}

/// Every set of `size` of `roles`.
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
    /// Everything that one block could have been. The error is that there is nothing at all.
    pub async fn alternatives(&self, addr: BlockAddr) -> Result<Alternatives, ArrayError> {
        let group = self.group_of(addr.segment())?;
        let geometry = group.geometry();
        let limit = geometry.blocks_per_segment();
        if addr.block() >= limit {
            let (segment, first) = (addr.segment(), addr.block());
            return Err(ArrayError::OutOfRange { segment, first, count: 1, limit });
        }
        let place =
            ColumnReads { group: &group, index: geometry.index_of(addr.segment()), bad: &[] };
        let (role, start_bytes) = geometry.locate(addr.block());
        let end_bytes = start_bytes + BLOCK_BYTES;

        // A mirror's columns are all role 0.
        let roles = if group.kernel.is_some() { geometry.members } else { geometry.data_columns() };
        let place = &place;
        let reads = (0..roles).map(|role| async move {
            let range = ColumnRange { role, start_bytes, end_bytes };
            let trusted = place.group.sources(place.index, role);
            let trusted = trusted.iter().map(|member| self.read_member(place, member, range));
            let mut outcomes = rt::join_all(trusted).await;
            let offset_bytes = geometry.column_start_bytes(place.index) + start_bytes;
            for member in place.group.suspects(place.index, role) {
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
            // Leaving out exactly as many as can be spared covers every smaller guess: columns
            // that are right may be left out too.
            Some(kernel) if others.len() >= need => {
                let distrusted = sets(&others, others.len() - need);
                Some(FromParity::new(kernel, role, versions, distrusted))
            }
            _ => None,
        };
        if direct.is_empty() && parity.is_none() {
            return Err(ArrayError::Unreadable { addr, blocks: 1, have, need, causes });
        }
        Ok(Alternatives { direct, parity })
    }
}

#[cfg(test)]
mod tests;
