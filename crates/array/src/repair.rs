//! Repair: one block rewritten on every member that should hold it.

use std::rc::Rc;

use forebay_device::{IoBuf, IoBytes};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr};

use crate::Array;
use crate::error::ArrayError;
use crate::event::ArrayEvent;
use crate::geometry::ColumnRange;
use crate::member::Member;
use crate::read::SegmentSource;

/// What a member held before it was rewritten.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// It could not be read.
    Nothing,
    /// It was wrong.
    Wrong,
    /// It does not fit the other columns, and may have been right.
    Unproved,
}

impl Array {
    /// Rewrites one block with its right content on every member that should hold it and does
    /// not. Returns the number of members that it rewrote. The caller has checked `data`, and
    /// prevents reuse of the segment meanwhile.
    pub async fn repair(&self, addr: BlockAddr, data: &[u8]) -> Result<usize, ArrayError> {
        assert_eq!(data.len(), BLOCK_LEN, "a block is repaired whole");
        let group = self.group_of(addr.segment())?;
        let geometry = group.geometry();
        let limit = geometry.blocks_per_segment();
        if addr.block() >= limit {
            let (segment, first) = (addr.segment(), addr.block());
            return Err(ArrayError::OutOfRange { segment, first, count: 1, limit });
        }
        let index = geometry.index_of(addr.segment());
        let source = SegmentSource { group: &group, index, excluded: &[] };
        let (role, start_bytes) = geometry.locate(addr.block());
        let range = ColumnRange { role, start_bytes, end_bytes: start_bytes + BLOCK_BYTES };
        let right = IoBuf::copy_of(data).freeze();
        let mut repaired = 0;
        for member in group.sources(index, role) {
            let held = match self.read_member(&source, &member, range).await {
                Ok(held) if held[..] == *data => continue,
                Ok(_) => {
                    member.count_checksum_errors(1);
                    Held::Wrong
                }
                Err(_) => Held::Nothing,
            };
            let rewritten = self.rewrite(&source, &member, range, addr, right.clone(), held).await;
            repaired += usize::from(rewritten);
        }
        Ok(repaired)
    }

    /// Writes the right content to a member. Returns whether the member accepted it.
    ///
    /// If the range was not readable, it is read back. A device that cannot read what it has just
    /// written becomes faulted, unless the group needs it.
    pub(crate) async fn rewrite(
        &self,
        source: &SegmentSource<'_>,
        member: &Rc<Member>,
        range: ColumnRange,
        addr: BlockAddr,
        data: IoBytes,
        held: Held,
    ) -> bool {
        if !member.is_writable() || self.frozen.get() {
            return false;
        }
        let len_bytes = data.len() as u64;
        let offset_bytes =
            source.group.geometry().column_start_bytes(source.index) + range.start_bytes;
        let device = member.device();
        let writes = vec![(member.clone(), vec![data])];
        let failed = self.write_columns(source.group, source.index, offset_bytes, writes).await;
        if !failed.is_empty() {
            return false;
        }
        if held == Held::Nothing {
            if let Err(cause) = self.read_member(source, member, range).await {
                if member.is_told_of(device.as_ref(), &cause) {
                    self.fault_for(source.group, member, cause);
                }
                return false;
            }
        }
        let (device, is_proved) = (member.id, held != Held::Unproved);
        self.events.push(ArrayEvent::Repaired { device, addr, len_bytes, is_proved });
        true
    }
}
