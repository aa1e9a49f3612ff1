//! A group: its members by column, and its health.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use forebay_device::{Device, DeviceError};
use forebay_units::{DeviceId, Layout};

use crate::error::ArrayError;
use crate::geometry::GroupGeometry;
use crate::kernel::{ParityKernel, kernel_for};
use crate::member::{Member, MemberSpec};

/// A group as the pool's configuration describes it.
#[derive(Clone)]
pub struct GroupSpec {
    /// Its shape.
    pub geometry: GroupGeometry,
    /// For each column its member, followed by the members that replace it.
    pub slots: Vec<Vec<MemberSpec>>,
}

impl GroupSpec {
    /// A group whose members are all online and up to date.
    #[must_use]
    pub fn healthy(geometry: GroupGeometry, members: Vec<(DeviceId, Device)>) -> Self {
        let slot = |(id, device)| vec![MemberSpec::healthy(id, device)];
        Self { geometry, slots: members.into_iter().map(slot).collect() }
    }
}

/// The health of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// Every member is online and up to date.
    Online,
    /// A member or a column is missing; everything can be read and written.
    Degraded,
    /// Everything can be read; nothing can be written.
    ReadOnly,
    /// Some segments cannot be read.
    Unavail,
}

pub(crate) type Slot = Vec<Rc<Member>>;

pub(crate) struct Group {
    geometry: Cell<GroupGeometry>,
    pub(crate) slots: RefCell<Vec<Slot>>,
    /// The parity kernel, when the layout has parity.
    pub(crate) kernel: Option<Arc<dyn ParityKernel>>,
}

impl Group {
    pub(crate) fn new(config: GroupSpec) -> Result<Self, ArrayError> {
        let GroupSpec { geometry, slots } = config;
        let geometry = GroupGeometry { members: slots.len(), ..geometry };
        geometry.check()?;
        for member in slots.iter().flatten() {
            check_size(&geometry, member.id, member.device.as_ref())?;
        }
        let kernel = geometry
            .is_raidz()
            .then(|| kernel_for(geometry.data_columns(), geometry.parity_columns()));
        let open = |c| Rc::new(Member::new(c, geometry.segments, geometry.first_segment));
        let slots = slots.into_iter().map(|slot| slot.into_iter().map(open).collect()).collect();
        Ok(Self { geometry: Cell::new(geometry), slots: RefCell::new(slots), kernel })
    }

    pub(crate) fn geometry(&self) -> GroupGeometry {
        self.geometry.get()
    }

    pub(crate) fn set_geometry(&self, geometry: GroupGeometry) {
        self.geometry.set(geometry);
    }

    pub(crate) fn is_mirror(&self) -> bool {
        self.geometry.get().layout == Layout::Mirror
    }

    /// All members, replacements included.
    pub(crate) fn members(&self) -> Vec<Rc<Member>> {
        self.slots.borrow().iter().flatten().cloned().collect()
    }

    /// Members whose copy of a role's column is trusted.
    pub(crate) fn sources(&self, index: u32, role: usize) -> Vec<Rc<Member>> {
        let geometry = self.geometry();
        let slots = self.slots.borrow();
        let current = |member: &&Rc<Member>| member.is_current(index);
        if self.is_mirror() {
            return slots.iter().flatten().filter(current).cloned().collect();
        }
        slots[geometry.column_of(index, role)].iter().filter(current).cloned().collect()
    }

    /// Members whose copy of a role's column is untrusted: outdated, or on a failed member. Only
    /// for callers that check the data.
    pub(crate) fn suspects(&self, index: u32, role: usize) -> Vec<Rc<Member>> {
        let slots = self.slots.borrow();
        let column = self.geometry().column_of(index, role);
        let suspect = |member: &&Rc<Member>| member.is_open() && !member.is_current(index);
        let all = slots.iter().enumerate().filter(|(at, _)| self.is_mirror() || *at == column);
        all.flat_map(|(_, slot)| slot).filter(suspect).cloned().collect()
    }

    /// The role of a member's column in a segment; in a mirror all are copies of role 0.
    pub(crate) fn role_of_column(&self, index: u32, column: usize) -> usize {
        if self.is_mirror() { 0 } else { self.geometry().role_of(index, column) }
    }

    /// Columns of a segment that no member holds up to date.
    pub(crate) fn missing_columns(&self, index: u32) -> usize {
        let slots = self.slots.borrow();
        slots.iter().filter(|slot| slot.iter().all(|member| member.is_stale(index))).count()
    }

    /// Whether a segment could be read with members that are away.
    pub(crate) fn lacks_sources(&self, index: u32) -> bool {
        let slots = self.slots.borrow();
        let readable =
            slots.iter().filter(|slot| slot.iter().any(|member| member.is_current(index)));
        readable.count() < self.geometry().data_columns()
            && self.missing_columns(index) <= self.geometry().parity_columns()
    }

    /// Columns of a segment that stay up to date after a write.
    pub(crate) fn writable_columns(&self, index: u32) -> usize {
        let good = |member: &Rc<Member>| member.is_writable() && !member.is_stale(index);
        self.slots.borrow().iter().filter(|slot| slot.iter().any(good)).count()
    }

    /// Segments of which the members that can be written do not hold enough columns.
    pub(crate) fn indices_not_writable(&self) -> impl Iterator<Item = u32> + '_ {
        let geometry = self.geometry();
        let is_held = move |index| self.writable_columns(index) >= geometry.data_columns();
        (0..geometry.segments).filter(move |index| !is_held(*index))
    }

    /// Columns with a writable member.
    pub(crate) fn writable_slots(&self) -> usize {
        let slots = self.slots.borrow();
        slots.iter().filter(|slot| slot.iter().any(|member| member.is_writable())).count()
    }

    /// What failed on members that cannot be written.
    pub(crate) fn failures(&self) -> Vec<DeviceError> {
        let members = self.members();
        let failed = members.iter().filter(|member| !member.is_writable());
        failed.filter_map(|member| member.failure()).collect()
    }

    /// `causes`, and what failed before on members that cannot be written: commands beside this
    /// one, or earlier ones.
    pub(crate) fn with_failures(&self, mut causes: Vec<DeviceError>) -> Vec<DeviceError> {
        for failure in self.failures() {
            if causes.iter().all(|cause| cause.device != failure.device) {
                causes.push(failure);
            }
        }
        causes
    }

    /// Checks that every segment can be read without the member `without`. The error is the index
    /// of the first segment that cannot.
    pub(crate) fn check_without(&self, without: Option<DeviceId>) -> Result<(), u32> {
        self.check_with(|member| member.is_readable() && Some(member.id) != without)
    }

    /// The same with the members that `usable` selects.
    pub(crate) fn check_with(&self, usable: impl Fn(&Member) -> bool) -> Result<(), u32> {
        let geometry = self.geometry();
        let allowed = geometry.parity_columns() as u32;
        let slots = self.slots.borrow();
        let usable: Vec<Vec<&Rc<Member>>> = slots
            .iter()
            .map(|slot| slot.iter().filter(|member| usable(member)).collect())
            .collect();
        for word in 0..geometry.segments.div_ceil(64) {
            let in_use = (geometry.segments - word * 64).min(64);
            let mask = u64::MAX >> (64 - in_use);
            let missing: Vec<u64> = usable
                .iter()
                .map(|slot| slot.iter().fold(mask, |bits, m| bits & m.stale_word(word as usize)))
                .filter(|bits| *bits != 0)
                .collect();
            if missing.len() as u32 <= allowed {
                continue;
            }
            let lost = |bit: &u32| {
                missing.iter().map(|bits| (bits >> bit & 1) as u32).sum::<u32>() > allowed
            };
            if let Some(bit) = (0..in_use).find(lost) {
                return Err(word * 64 + bit);
            }
        }
        Ok(())
    }

    pub(crate) fn health(&self) -> Health {
        if self.check_without(None).is_err() {
            return Health::Unavail;
        }
        if self.writable_slots() < self.geometry().data_columns() {
            return Health::ReadOnly;
        }
        let slots = self.slots.borrow();
        let is_whole = |member: &Rc<Member>| member.is_writable() && member.stale_count() == 0;
        if slots.iter().all(|slot| slot.iter().all(is_whole)) {
            Health::Online
        } else {
            Health::Degraded
        }
    }
}

/// Refuses a device that is too small for its column.
pub(crate) fn check_size(
    geometry: &GroupGeometry,
    id: DeviceId,
    device: Option<&Device>,
) -> Result<(), ArrayError> {
    let Some(device) = device else { return Ok(()) };
    let (size_bytes, needed_bytes) = (device.geometry().size_bytes, geometry.needed_bytes());
    if size_bytes < needed_bytes {
        return Err(ArrayError::TooSmall { device: id, size_bytes, needed_bytes });
    }
    Ok(())
}
