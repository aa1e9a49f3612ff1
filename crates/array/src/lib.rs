//! Segments over devices: stripes, parity, and what is left when devices fail.
//!
//! What enters: whole rows of blocks to write, addresses to read, and devices that come and go.
//! What leaves: one command per device and column; data, computed from parity where columns are
//! missing; events on devices that failed.
//! What always holds: a column that missed a write is never read until it was rebuilt; a failed
//! write or flush is never retried into success; only whole rows are written, and nothing live is
//! overwritten, except by [`Array::repair`] and scrubbing with what it should have held.
//! Who calls me: `segment` writes and reads, and knows the checksums; `pool` moves devices in and
//! out, rebuilds and scrubs at its own pace, keeps each member's state and outdated segments.
//!
//! This room knows devices and addresses only. Whether a block is right it cannot tell: whoever
//! can, passes a judge ([`BlockVerdict`]) or goes through [`Array::alternatives`].

mod admin;
mod alternatives;
mod batch;
mod error;
mod event;
pub mod geometry;
mod group;
pub mod kernel;
mod member;
mod read;
mod repair;
mod segment_set;
mod write;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_units::SegmentId;

pub use admin::MemberStatus;
pub use alternatives::Alternatives;
pub use batch::{RowBatch, WriteKind};
pub use error::ArrayError;
pub use event::{ArrayEvent, ArrayEvents};
pub use geometry::{GeometryError, GroupGeometry, Layout};
pub use group::{GroupSpec, Health};
pub use member::{ErrorCounts, MemberSpec, MemberState};
pub use repair::{BlockVerdict, Judge, Mismatch, Rebuilding, Rebuilt, Scrubbed};

use group::Group;

/// Bytes that went to devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The first copy of each data column.
    pub data_bytes: u64,
    /// Parity, further copies of a mirror, and copies for replacements.
    pub redundancy_bytes: u64,
}

/// The groups of a pool's main store.
pub struct Array {
    groups: RefCell<Vec<Rc<Group>>>,
    events: ArrayEvents,
    /// Segments with successful batches since they were last known durable, and the last batch.
    unflushed: RefCell<BTreeMap<SegmentId, u64>>,
    /// Counts successful batches.
    write_seq: Cell<u64>,
    totals: RefCell<BTreeMap<WriteKind, Written>>,
    /// Nothing is repaired any more.
    frozen: Cell<bool>,
}

impl Array {
    /// An array of groups with open devices.
    pub fn new(configs: Vec<GroupSpec>) -> Result<Rc<Self>, ArrayError> {
        let array = Rc::new(Self {
            groups: RefCell::default(),
            events: ArrayEvents::default(),
            unflushed: RefCell::default(),
            write_seq: Cell::new(0),
            totals: RefCell::default(),
            frozen: Cell::new(false),
        });
        for config in configs {
            array.add_group(config)?;
        }
        Ok(array)
    }

    /// Adds a group; its segments can be used at once. Its number is its place in the order of
    /// adding.
    pub fn add_group(&self, config: GroupSpec) -> Result<usize, ArrayError> {
        let group = Group::new(config)?;
        let mine = group.geometry();
        for other in self.groups.borrow().iter() {
            let theirs = other.geometry();
            let start = mine.first_segment.max(theirs.first_segment);
            let end =
                (mine.first_segment + mine.segments).min(theirs.first_segment + theirs.segments);
            if start < end {
                return Err(GeometryError::Overlap { segment: start }.into());
            }
        }
        let mut ids: Vec<_> = group.members().iter().map(|member| member.id).collect();
        ids.sort_unstable();
        let twice = ids.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let here = ids.iter().copied().find(|id| self.find(*id).is_ok());
        if let Some(device) = twice.or(here) {
            return Err(ArrayError::DeviceInUse { device });
        }
        self.groups.borrow_mut().push(Rc::new(group));
        Ok(self.groups.borrow().len() - 1)
    }

    /// From here on nothing is rewritten that is found wrong: the devices may be somebody else's.
    pub fn freeze(&self) {
        self.frozen.set(true);
    }

    /// The shape of each group, in the order of adding.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupGeometry> {
        self.groups.borrow().iter().map(|group| group.geometry()).collect()
    }

    /// The shape of the group that owns a segment.
    pub fn geometry_of(&self, segment: SegmentId) -> Result<GroupGeometry, ArrayError> {
        Ok(self.group_of(segment)?.geometry())
    }

    /// How well each group is, in the order of adding.
    #[must_use]
    pub fn health(&self) -> Vec<Health> {
        self.groups.borrow().iter().map(|group| group.health()).collect()
    }

    /// Whether a new segment can be written here now.
    pub fn is_writable(&self, segment: SegmentId) -> Result<bool, ArrayError> {
        let group = self.group_of(segment)?;
        let geometry = group.geometry();
        Ok(group.writable_columns(geometry.index_of(segment)) >= geometry.data_columns())
    }

    /// Whether every group has the devices that a write needs; else the first that has not.
    pub fn check_writable(&self) -> Result<(), ArrayError> {
        for group in self.groups.borrow().iter() {
            let (have, need) = (group.writable_slots(), group.geometry().data_columns());
            if have < need {
                let segment = group.geometry().segment_at(0);
                return Err(ArrayError::NotWritable { segment, have, need });
            }
        }
        Ok(())
    }

    /// What happened and was not taken yet.
    #[must_use]
    pub fn events(&self) -> &ArrayEvents {
        &self.events
    }

    /// Bytes that batches of a kind sent to devices since the array was opened.
    #[must_use]
    pub fn totals(&self, kind: WriteKind) -> Written {
        self.totals.borrow().get(&kind).copied().unwrap_or_default()
    }

    fn account(&self, kind: WriteKind, written: Written) {
        let mut totals = self.totals.borrow_mut();
        let total = totals.entry(kind).or_default();
        total.data_bytes += written.data_bytes;
        total.redundancy_bytes += written.redundancy_bytes;
    }

    fn group_of(&self, segment: SegmentId) -> Result<Rc<Group>, ArrayError> {
        let groups = self.groups.borrow();
        let owner = groups.iter().find(|group| group.geometry().owns(segment));
        owner.cloned().ok_or(ArrayError::NoSuchSegment { segment })
    }

    fn check_rows(&self, segment: SegmentId, first: u32, count: u32) -> Result<(), ArrayError> {
        let limit = self.group_of(segment)?.geometry().rows();
        if count == 0 || first.checked_add(count).is_none_or(|end| end > limit) {
            return Err(ArrayError::OutOfRange { segment, first, count, limit });
        }
        Ok(())
    }
}
