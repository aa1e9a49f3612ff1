//! What changed since the record before.

use std::collections::BTreeMap;

use forebay_units::{BlockAddr, Lba, VolumeId};

use super::{VERSION, check_lba_range, check_run, decode_addr, decode_version};
use crate::{Decoder, Encoder, FormatError, MapFlaw, varint};

const TAG_ASSIGN: u64 = 0;
const TAG_CLEAR: u64 = 1;
const TAG_DROP: u64 = 2;
const TAG_END: u64 = 3;
/// An assignment to where the one before it ended.
const TAG_NEXT: u64 = 4;
/// An assignment of blocks whose sums are in the footer of their segment; since version 6 of the
/// superblock.
const TAG_SEALED: u64 = 5;
const TAG_BITS: u32 = 3;
/// Tag and length, LBA, address: a change without its sums.
const CHANGE_BYTES_MAX: usize = 7 + 6 + 5;
/// The id of a volume before its changes, and the mark after them.
const GROUP_BYTES: usize = 5;
const SUM_BYTES: usize = 5;

/// One change of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Blocks now lie at consecutive addresses; their sums are the next `blocks` of
    /// [`VolumeDelta::sums`].
    Assign {
        /// The first block.
        lba: Lba,
        /// Blocks, at least one.
        blocks: u32,
        /// Where the first one lies; the run stays within its segment.
        addr: BlockAddr,
    },
    /// Blocks now lie at consecutive addresses, and only the footer of their segment has their
    /// sums.
    AssignSealed {
        /// The first block.
        lba: Lba,
        /// Blocks, at least one.
        blocks: u32,
        /// Where the first one lies; the run stays within its segment.
        addr: BlockAddr,
    },
    /// Blocks are holes now.
    Clear {
        /// The first block.
        lba: Lba,
        /// Blocks, at least one.
        blocks: u64,
    },
    /// The volume is gone with all it mapped.
    Drop,
}

/// The changes of one volume, in the order they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeDelta {
    /// The changes; later ones win.
    pub changes: Vec<Change>,
    /// Checksums of all assigned blocks, in the order of the assignments.
    pub sums: Vec<u64>,
}

/// Changes grouped by volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    volumes: BTreeMap<VolumeId, VolumeDelta>,
    changes: usize,
    sums: usize,
}

impl Delta {
    /// No changes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Blocks from `lba` on lie at `addr` and after it, one per sum. Joined with the change
    /// before when it continues that one.
    pub fn assign(&mut self, volume: VolumeId, lba: Lba, addr: BlockAddr, sums: &[u64]) {
        if sums.is_empty() {
            return;
        }
        let more = u32::try_from(sums.len()).expect("a run is below 2^20 blocks");
        let group = self.volumes.entry(volume).or_default();
        group.sums.extend_from_slice(sums);
        self.sums += sums.len();
        if let Some(Change::Assign { lba: before, blocks, addr: at }) = group.changes.last_mut() {
            if before.0 + u64::from(*blocks) == lba.0
                && at.segment() == addr.segment()
                && at.raw() + u64::from(*blocks) == addr.raw()
            {
                *blocks += more;
                return;
            }
        }
        group.changes.push(Change::Assign { lba, blocks: more, addr });
        self.changes += 1;
    }

    /// `blocks` blocks from `lba` on lie at `addr` and after it, with their sums in the footer.
    pub fn assign_sealed(&mut self, volume: VolumeId, lba: Lba, addr: BlockAddr, blocks: u32) {
        let group = self.volumes.entry(volume).or_default();
        if let Some(Change::AssignSealed { lba: before, blocks: count, addr: at }) =
            group.changes.last_mut()
        {
            if before.0 + u64::from(*count) == lba.0
                && at.segment() == addr.segment()
                && at.raw() + u64::from(*count) == addr.raw()
            {
                *count += blocks;
                return;
            }
        }
        group.changes.push(Change::AssignSealed { lba, blocks, addr });
        self.changes += 1;
    }

    /// `blocks` blocks from `lba` on are holes.
    pub fn clear(&mut self, volume: VolumeId, lba: Lba, blocks: u64) {
        if blocks > 0 {
            self.volumes.entry(volume).or_default().changes.push(Change::Clear { lba, blocks });
            self.changes += 1;
        }
    }

    /// The volume is gone. What this delta said of it before is forgotten.
    pub fn drop_volume(&mut self, volume: VolumeId) {
        let group = self.volumes.entry(volume).or_default();
        self.changes = self.changes - group.changes.len() + 1;
        self.sums -= group.sums.len();
        *group = VolumeDelta { changes: vec![Change::Drop], sums: Vec::new() };
    }

    /// The changed volumes, in order of their ids.
    pub fn volumes(&self) -> impl Iterator<Item = (VolumeId, &VolumeDelta)> {
        self.volumes.iter().map(|(volume, group)| (*volume, group))
    }

    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }

    /// A bound on the bytes of [`Delta::encode`] when it need not split; costs nothing to ask.
    #[must_use]
    pub fn encoded_len_max(&self) -> usize {
        1 + self.volumes.len() * GROUP_BYTES
            + self.changes * CHANGE_BYTES_MAX
            + self.sums * SUM_BYTES
    }

    /// The delta as payloads of at most `payload_bytes_max` each, to be applied in this order.
    /// Panics when a change reaches past the end of any volume, or the limit is below 64.
    #[must_use]
    pub fn encode(&self, payload_bytes_max: usize) -> Vec<Vec<u8>> {
        let mut out = Payloads::new(payload_bytes_max);
        for (volume, group) in &self.volumes {
            let mut sums = &group.sums[..];
            for change in &group.changes {
                match *change {
                    Change::Drop => out.change(*volume, TAG_DROP, None),
                    Change::Clear { lba, blocks } => {
                        out.change(*volume, TAG_CLEAR, Some((lba.0, blocks)));
                    }
                    Change::AssignSealed { lba, blocks, addr } => {
                        out.change(*volume, TAG_SEALED, Some((lba.0, u64::from(blocks))));
                        out.sealed(addr);
                    }
                    Change::Assign { lba, blocks, addr } => {
                        let (mine, others) = sums.split_at(blocks as usize);
                        sums = others;
                        out.assign(*volume, lba.0, addr, mine);
                    }
                }
            }
            out.end_group();
        }
        out.finish()
    }

    /// The delta in one payload.
    pub fn decode(payload: &[u8]) -> Result<Self, FormatError> {
        let mut from = decode_version(payload)?;
        let mut delta = Self::new();
        let mut last = None;
        while !from.rest().is_empty() {
            let volume = VolumeId(from.u32()?);
            if last.is_some_and(|last| last >= volume) {
                return Err(from.error(MapFlaw::VolumeOrder { volume }));
            }
            last = Some(volume);
            let mut group = VolumeDelta::default();
            let mut ends = Ends::default();
            while let Some(change) = decode_change(&mut from, volume, &mut ends, &mut group.sums)? {
                group.changes.push(change);
            }
            delta.changes += group.changes.len();
            delta.sums += group.sums.len();
            delta.volumes.insert(volume, group);
        }
        Ok(delta)
    }
}

/// Fills payloads, each of which is a delta of its own.
struct Payloads {
    limit: usize,
    full: Vec<Vec<u8>>,
    out: Encoder,
    /// The volume whose group is open in `out`.
    open: Option<VolumeId>,
    /// Where the last change ended: one that goes on from there costs one byte of LBA.
    expected: u64,
    /// Where the last assignment of the group ended: one that goes on there has no address.
    next: Option<u64>,
}

impl Payloads {
    fn new(limit: usize) -> Self {
        assert!(limit >= 64, "payloads of {limit} bytes hold nothing");
        Self { limit, full: Vec::new(), out: Encoder::new(), open: None, expected: 0, next: None }
    }

    /// Bytes that can still be added, less what ends a group.
    fn room(&self) -> usize {
        self.limit.saturating_sub(self.out.len() + 1)
    }

    /// Opens the group of `volume`, in a new payload if fewer than `len` bytes would be left.
    fn open_group(&mut self, volume: VolumeId, len: usize) {
        if self.room() < GROUP_BYTES + len {
            self.end_group();
            self.end_payload();
        }
        if self.out.is_empty() {
            self.out.u8(VERSION);
        }
        if self.open != Some(volume) {
            self.out.u32(volume.0);
            self.open = Some(volume);
            self.expected = 0;
            self.next = None;
        }
    }

    fn change(&mut self, volume: VolumeId, tag: u64, range: Option<(u64, u64)>) {
        self.open_group(volume, CHANGE_BYTES_MAX);
        let Some((lba, blocks)) = range else {
            return varint::put(&mut self.out, tag);
        };
        let end = lba.checked_add(blocks).filter(|end| *end <= super::MAX_VOLUME_BLOCKS);
        let end = end.expect("a change reaches past the end of any volume");
        varint::put(&mut self.out, blocks << TAG_BITS | tag);
        varint::put(&mut self.out, varint::zigzag(lba as i64 - self.expected as i64));
        self.expected = end;
    }

    fn assign(&mut self, volume: VolumeId, mut lba: u64, mut addr: BlockAddr, mut sums: &[u64]) {
        while !sums.is_empty() {
            self.open_group(volume, CHANGE_BYTES_MAX + SUM_BYTES);
            let fit = ((self.room() - CHANGE_BYTES_MAX) / SUM_BYTES).min(sums.len());
            let (now, later) = sums.split_at(fit);
            if self.next == Some(addr.raw()) {
                self.change(volume, TAG_NEXT, Some((lba, fit as u64)));
            } else {
                self.change(volume, TAG_ASSIGN, Some((lba, fit as u64)));
                self.out.u40(addr.raw());
            }
            self.next = Some(addr.raw() + fit as u64);
            for sum in now {
                self.out.u40(*sum);
            }
            if !later.is_empty() {
                lba += fit as u64;
                addr = addr.plus(fit as u32);
            }
            sums = later;
        }
    }

    /// The address of the change that was just begun.
    fn sealed(&mut self, addr: BlockAddr) {
        self.out.u40(addr.raw());
        self.next = None;
    }

    fn end_group(&mut self) {
        if self.open.take().is_some() {
            varint::put(&mut self.out, TAG_END);
        }
    }

    fn end_payload(&mut self) {
        if !self.out.is_empty() {
            self.full.push(std::mem::take(&mut self.out).finish());
        }
    }

    fn finish(mut self) -> Vec<Vec<u8>> {
        self.end_payload();
        self.full
    }
}

/// Where the last change of a group ended in its volume, and the last assignment on media.
#[derive(Default)]
struct Ends {
    lba: u64,
    addr: Option<u64>,
}

fn decode_change(
    from: &mut Decoder<'_>,
    volume: VolumeId,
    ends: &mut Ends,
    sums: &mut Vec<u64>,
) -> Result<Option<Change>, FormatError> {
    let head = varint::take(from)?;
    let (tag, blocks) = (head & ((1 << TAG_BITS) - 1), head >> TAG_BITS);
    match (tag, blocks) {
        (TAG_DROP, 0) => return Ok(Some(Change::Drop)),
        (TAG_END, 0) => return Ok(None),
        _ => {}
    }
    if !matches!(tag, TAG_ASSIGN | TAG_CLEAR | TAG_NEXT | TAG_SEALED) || blocks == 0 {
        return Err(from.error(MapFlaw::UnknownChange { volume, head }));
    }
    let difference = varint::unzigzag(varint::take(from)?);
    let Some(lba) = ends.lba.checked_add_signed(difference) else {
        return Err(from.error(MapFlaw::ChangeBelowZero { volume }));
    };
    check_lba_range(from, volume, lba, blocks)?;
    ends.lba = lba + blocks;
    let lba = Lba(lba);
    if tag == TAG_CLEAR {
        return Ok(Some(Change::Clear { lba, blocks }));
    }
    if tag == TAG_SEALED {
        ends.addr = None;
        let addr = decode_addr(from, blocks)?;
        return Ok(Some(Change::AssignSealed { lba, blocks: blocks as u32, addr }));
    }
    let addr = match (tag, ends.addr) {
        (TAG_NEXT, Some(addr)) => {
            let addr = BlockAddr::from_raw(addr);
            check_run(from, addr, blocks)?;
            addr
        }
        (TAG_NEXT, None) => {
            return Err(from.error(MapFlaw::ChangeFollowsNone { volume }));
        }
        _ => decode_addr(from, blocks)?,
    };
    ends.addr = Some(addr.raw() + blocks);
    // The run fits a segment, so its length is small; take the bytes before making room for them.
    let bytes = from.bytes(blocks as usize * SUM_BYTES)?;
    sums.extend(bytes.chunks_exact(SUM_BYTES).map(|sum| {
        let mut wide = [0; 8];
        wide[..SUM_BYTES].copy_from_slice(sum);
        u64::from_le_bytes(wide)
    }));
    Ok(Some(Change::Assign { lba, blocks: blocks as u32, addr }))
}
