#![doc = include_str!("../README.md")]

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
mod rebuild;
mod repair;
mod rows;
mod scrub;
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
pub use geometry::{GeometryError, GroupGeometry};
pub use group::{GroupSpec, Health};
pub use member::{ErrorCounts, MemberSpec, MemberState};
pub use rebuild::{Rebuilding, Rebuilt};
pub use rows::{BlockVerdict, Judge};
pub use scrub::{Mismatch, Scrubbed};

use group::Group;

/// Bytes written to devices.
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
    /// Segments with successful batches that are not known to be durable, and their last batch.
    unflushed: RefCell<BTreeMap<SegmentId, u64>>,
    /// Counts successful batches.
    write_seq: Cell<u64>,
    totals: RefCell<BTreeMap<WriteKind, Written>>,
    /// Whether repairs are disabled.
    frozen: Cell<bool>,
    /// Whether segments may be on none of the members that can be written.
    gives_up_sources: Cell<bool>,
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
            gives_up_sources: Cell::new(false),
        });
        for config in configs {
            array.add_group(config)?;
        }
        Ok(array)
    }

    /// Adds a group, whose segments can be used at once. Returns its number: groups are numbered
    /// in the order of adding.
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

    /// Lets [`Array::check_writable`] accept that segments are on none of the members that can be
    /// written: an operator has given up what others alone have. Those lack it from now on.
    pub fn give_up_sources(&self) {
        self.gives_up_sources.set(true);
        for group in self.groups.borrow().iter() {
            let members = group.members();
            for index in group.indices_not_writable() {
                let others = members.iter().filter(|member| !member.is_writable());
                others.for_each(|member| member.mark_stale(index));
            }
        }
    }

    /// The first segment that is on none of the members that can be written, and on others.
    #[must_use]
    pub fn missing_source(&self) -> Option<SegmentId> {
        self.groups.borrow().iter().find_map(|group| {
            let geometry = group.geometry();
            let is_held = |index: &u32| group.missing_columns(*index) <= geometry.parity_columns();
            group.indices_not_writable().find(is_held).map(|index| geometry.segment_at(index))
        })
    }

    /// Disables repairs, because another owner may have taken the devices.
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

    /// The health of each group, in the order of adding.
    #[must_use]
    pub fn health(&self) -> Vec<Health> {
        self.groups.borrow().iter().map(|group| group.health()).collect()
    }

    /// Checks that every group has the devices that a write needs, and that these hold every
    /// segment: members that are being rebuilt can be written, and may lack it. The error names the
    /// first segment that they lack.
    pub fn check_writable(&self) -> Result<(), ArrayError> {
        for group in self.groups.borrow().iter() {
            let geometry = group.geometry();
            let (have, need) = (group.writable_slots(), geometry.data_columns());
            if have < need {
                let segment = geometry.segment_at(0);
                let causes = group.failures();
                return Err(ArrayError::NotWritable { segment, have, need, causes });
            }
            if self.gives_up_sources.get() {
                continue;
            }
            let held = group.check_with(|member| member.is_writable());
            held.map_err(|index| {
                let segment = geometry.segment_at(index);
                ArrayError::SourcesMissing { segment }
            })?;
        }
        Ok(())
    }

    /// Whether a segment that has rows takes more of them: enough members have those.
    #[must_use]
    pub fn can_extend(&self, segment: SegmentId) -> bool {
        self.group_of(segment).is_ok_and(|group| {
            let geometry = group.geometry();
            group.writable_columns(geometry.index_of(segment)) >= geometry.data_columns()
        })
    }

    /// The queue of events.
    #[must_use]
    pub fn events(&self) -> &ArrayEvents {
        &self.events
    }

    /// Bytes that batches of a kind wrote to devices since the array was opened.
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
