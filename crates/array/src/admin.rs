//! Administration: members that fail, leave, return and are replaced.

use std::ops::Range;
use std::rc::Rc;

use forebay_device::{Device, DeviceError, ErrorKind};
use forebay_units::{DeviceId, Layout, SegmentId};

use crate::Array;
use crate::error::ArrayError;
use crate::event::ArrayEvent;
use crate::geometry::{GroupGeometry, MAX_MEMBERS};
use crate::group::{Group, check_size};
use crate::member::{ErrorCounts, Member, MemberSpec, MemberState};

/// A member as it is now.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// The member.
    pub id: DeviceId,
    /// Number of its group.
    pub group: usize,
    /// Its column. Members that share a column replace each other.
    pub column: usize,
    /// Whether it replaces another member of its column.
    pub replacement: bool,
    /// The name of its device, when it is open.
    pub name: Option<String>,
    /// Its state.
    pub state: MemberState,
    /// Its errors.
    pub errors: ErrorCounts,
    /// Number of segments that are missing or outdated here.
    pub stale_segments: u32,
    /// Ids of segments that are missing or outdated here, or would be after a crash. The pool
    /// stores them and returns them in [`MemberSpec::stale`].
    pub durable_stale: Vec<Range<u32>>,
}

fn as_ids(geometry: &GroupGeometry, ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    let first = geometry.first_segment;
    ranges.into_iter().map(|range| range.start + first..range.end + first).collect()
}

/// The state of a member that is not used any more because of `cause`.
fn state_after(cause: &DeviceError) -> MemberState {
    match cause.kind {
        ErrorKind::Gone => MemberState::Removed,
        _ => MemberState::Faulted,
    }
}

impl Array {
    /// All members, by group and column.
    #[must_use]
    pub fn status(&self) -> Vec<MemberStatus> {
        let mut all = Vec::new();
        for (number, group) in self.groups.borrow().iter().enumerate() {
            for (column, slot) in group.slots.borrow().iter().enumerate() {
                for (place, member) in slot.iter().enumerate() {
                    all.push(MemberStatus {
                        id: member.id,
                        group: number,
                        column,
                        replacement: place > 0,
                        name: member.device().map(|device| device.name().to_owned()),
                        state: member.state(),
                        errors: member.errors(),
                        stale_segments: member.stale_count(),
                        durable_stale: as_ids(&group.geometry(), member.durable_stale_ranges()),
                    });
                }
            }
        }
        all
    }

    /// The open device of a member.
    pub fn device(&self, id: DeviceId) -> Result<Option<Device>, ArrayError> {
        Ok(self.find(id)?.1.device())
    }

    /// Segments to rebuild: those that are outdated on a writable member.
    #[must_use]
    pub fn stale_segments(&self) -> Vec<SegmentId> {
        let mut segments = std::collections::BTreeSet::new();
        for group in self.groups.borrow().iter() {
            let geometry = group.geometry();
            for member in group.members().iter().filter(|member| member.is_writable()) {
                for index in member.stale_ranges().into_iter().flatten() {
                    segments.insert(geometry.segment_at(index));
                }
            }
        }
        segments.into_iter().collect()
    }

    pub(crate) fn find(&self, id: DeviceId) -> Result<(Rc<Group>, Rc<Member>), ArrayError> {
        for group in self.groups.borrow().iter() {
            if let Some(member) = group.members().into_iter().find(|member| member.id == id) {
                return Ok((group.clone(), member));
            }
        }
        Err(ArrayError::NoSuchDevice { device: id })
    }

    fn change_state(&self, member: &Member, to: MemberState, cause: Option<DeviceError>) {
        let from = member.state();
        if from != to {
            member.set_state(to);
            member.set_failure(cause.clone());
            self.events.push(ArrayEvent::StateChanged { device: member.id, from, to, cause });
        }
    }

    /// Counts a write or flush of `device` that failed, and changes the member's state.
    pub(crate) fn fail_member(
        &self,
        group: &Group,
        member: &Member,
        device: Option<&Device>,
        cause: &DeviceError,
    ) {
        if matches!(cause.kind, ErrorKind::FenceLost(_)) {
            // The device is well. The pool belongs to another owner, or has stopped.
            return;
        }
        if !member.is_told_of(device, cause) {
            return;
        }
        member.count_write_error();
        if self.lose_if_gone(member, cause) || member.state() != MemberState::Online {
            return;
        }
        // A group that needs the member continues to read its earlier data.
        let to = match self.check_without(group, member.id) {
            Ok(()) => MemberState::Faulted,
            Err(_) => MemberState::Degraded,
        };
        self.change_state(member, to, Some(cause.clone()));
    }

    /// Stops using a member whose device is gone or timed out, after any command. Returns whether
    /// the member was in use.
    pub(crate) fn lose_if_gone(&self, member: &Member, cause: &DeviceError) -> bool {
        if !matches!(cause.kind, ErrorKind::Gone | ErrorKind::TimedOut { .. }) {
            return false;
        }
        let lost = member.is_readable();
        if lost {
            self.change_state(member, state_after(cause), Some(cause.clone()));
        }
        lost
    }

    fn check_without(&self, group: &Group, device: DeviceId) -> Result<(), ArrayError> {
        group.check_without(Some(device)).map_err(|index| {
            let segment = group.geometry().segment_at(index);
            ArrayError::WouldLose { device, segment }
        })
    }

    /// Stops using a member because of `cause`, unless the group needs it.
    pub(crate) fn fault_for(&self, group: &Group, member: &Member, cause: DeviceError) {
        if member.is_readable() && self.check_without(group, member.id).is_ok() {
            self.change_state(member, MemberState::Faulted, Some(cause));
        }
    }

    /// Stops using a member because of `cause`, or because it has too many errors. Fails when the
    /// group needs it. One that is not in use stays in its state.
    pub fn fault(&self, id: DeviceId, cause: Option<&DeviceError>) -> Result<(), ArrayError> {
        let (group, member) = self.find(id)?;
        if member.is_readable() {
            self.check_without(&group, id)?;
            let to = cause.map_or(MemberState::Faulted, state_after);
            self.change_state(&member, to, cause.cloned());
        }
        Ok(())
    }

    /// Handles a failed write to `device` that was to be durable at once and is not the array's
    /// own, such as a heartbeat. A device reports a failed flush once, and then nothing that it
    /// holds unflushed can be relied on: those segments are stale, as after a failed flush of the
    /// array's own.
    pub fn durable_write_failed(
        &self,
        id: DeviceId,
        device: &Device,
        cause: &DeviceError,
    ) -> Result<(), ArrayError> {
        let (group, member) = self.find(id)?;
        self.fail_member(&group, &member, Some(device), cause);
        Ok(())
    }

    /// Counts a failed write or flush of a member's labels. Labels are not the array's, but the
    /// member's counters must explain why it failed.
    pub fn count_write_error(&self, id: DeviceId) -> Result<(), ArrayError> {
        let (_, member) = self.find(id)?;
        member.count_write_error();
        Ok(())
    }

    /// Counts wrong data in a member's labels.
    pub fn count_checksum_error(&self, id: DeviceId) -> Result<(), ArrayError> {
        let (_, member) = self.find(id)?;
        member.count_checksum_errors(1);
        Ok(())
    }

    /// Flushes a member, takes it offline and closes its device. Fails when the group needs it.
    pub async fn offline(&self, id: DeviceId) -> Result<(), ArrayError> {
        let (group, member) = self.find(id)?;
        self.check_without(&group, id)?;
        if member.is_writable() && member.needs_flush() {
            let device = member.device();
            if let Err(cause) = member.flush().await {
                self.fail_member(&group, &member, device.as_ref(), &cause);
            }
        }
        // Another member may have failed during the flush.
        self.check_without(&group, id)?;
        self.change_state(&member, MemberState::Offline, None);
        member.set_device(None);
        Ok(())
    }

    /// Takes a member offline and closes its device without a flush. Its data cannot be read until
    /// it returns. Fails when the group needs it.
    pub fn close(&self, id: DeviceId) -> Result<(), ArrayError> {
        let (group, member) = self.find(id)?;
        if member.is_readable() {
            self.check_without(&group, id)?;
        }
        self.change_state(&member, MemberState::Offline, None);
        member.set_device(None);
        Ok(())
    }

    /// Closes the device of a member that is not in use. Its state stays.
    pub fn close_unused(&self, id: DeviceId) -> Result<(), ArrayError> {
        let (_, member) = self.find(id)?;
        if !member.is_readable() {
            member.set_device(None);
        }
        Ok(())
    }

    /// Brings a member online, with a new device or the one it still has, and clears its error
    /// counters. Segments that it missed stay outdated until they are rebuilt.
    pub fn online(&self, id: DeviceId, device: Option<Device>) -> Result<(), ArrayError> {
        let (group, member) = self.find(id)?;
        check_size(&group.geometry(), id, device.as_ref())?;
        let Some(device) = device.or_else(|| member.device()) else {
            return Err(ArrayError::NotOpen { device: id });
        };
        member.set_device(Some(device));
        member.clear_errors();
        self.change_state(&member, MemberState::Online, None);
        Ok(())
    }

    /// Clears a member's error counters.
    pub fn clear_errors(&self, id: DeviceId) -> Result<(), ArrayError> {
        self.find(id)?.1.clear_errors();
        Ok(())
    }

    fn check_new(&self, group: &Group, id: DeviceId, device: &Device) -> Result<(), ArrayError> {
        if self.find(id).is_ok() {
            return Err(ArrayError::DeviceInUse { device: id });
        }
        check_size(&group.geometry(), id, Some(device))
    }

    /// A new member whose segments are all outdated.
    fn empty_member(group: &Group, id: DeviceId, device: Device) -> Rc<Member> {
        let geometry = group.geometry();
        let config = MemberSpec::healthy(id, device);
        let member = Member::new(config, geometry.segments, geometry.first_segment);
        member.mark_all_stale(geometry.segments);
        Rc::new(member)
    }

    /// Adds a copy to a mirror, or turns a single device into a mirror. All segments of the copy
    /// are outdated until they are rebuilt, or reset when they are free.
    pub fn attach(&self, to: DeviceId, id: DeviceId, device: Device) -> Result<(), ArrayError> {
        let (group, _) = self.find(to)?;
        self.check_new(&group, id, &device)?;
        let mut geometry = group.geometry();
        if geometry.layout != Layout::Mirror
            && !(geometry.layout == Layout::Raid0 && geometry.members == 1)
        {
            return Err(ArrayError::NotMirror { device: to, layout: geometry.layout });
        }
        if geometry.members >= MAX_MEMBERS {
            return Err(ArrayError::Full { device: id });
        }
        geometry.layout = Layout::Mirror;
        geometry.members += 1;
        group.slots.borrow_mut().push(vec![Self::empty_member(&group, id, device)]);
        group.set_geometry(geometry);
        Ok(())
    }

    /// Starts to replace a member: both members get all writes from now on. Once the new member is
    /// rebuilt, the old one can be detached.
    pub fn replace(&self, old: DeviceId, id: DeviceId, device: Device) -> Result<(), ArrayError> {
        let (group, _) = self.find(old)?;
        self.check_new(&group, id, &device)?;
        let member = Self::empty_member(&group, id, device);
        for slot in group.slots.borrow_mut().iter_mut() {
            if slot.iter().any(|member| member.id == old) {
                slot.push(member);
                break;
            }
        }
        Ok(())
    }

    /// Members to detach: their replacement is up to date.
    #[must_use]
    pub fn replaced(&self) -> Vec<DeviceId> {
        let mut done = Vec::new();
        for group in self.groups.borrow().iter() {
            for slot in group.slots.borrow().iter() {
                // The last member of a slot is the newest replacement.
                let Some((newest, olds)) = slot.split_last() else { continue };
                if newest.is_writable() && newest.durable_stale_ranges().is_empty() {
                    done.extend(olds.iter().map(|member| member.id));
                }
            }
        }
        done
    }

    /// Fails as [`Array::detach`] would. Changes nothing.
    pub fn check_detach(&self, id: DeviceId) -> Result<(), ArrayError> {
        let (group, _) = self.find(id)?;
        let geometry = group.geometry();
        let alone = group.slots.borrow().iter().any(|slot| slot.len() == 1 && slot[0].id == id);
        if alone && (geometry.layout != Layout::Mirror || geometry.members == 1) {
            return Err(ArrayError::NotMirror { device: id, layout: geometry.layout });
        }
        self.check_without(&group, id)
    }

    /// Removes a copy from a mirror, a replaced member, or an abandoned replacement. Fails when
    /// data would be lost.
    pub fn detach(&self, id: DeviceId) -> Result<(), ArrayError> {
        let (group, member) = self.find(id)?;
        let mut geometry = group.geometry();
        let column = {
            let slots = group.slots.borrow();
            slots.iter().position(|slot| slot.iter().any(|m| m.id == id)).expect("it was found")
        };
        self.check_detach(id)?;
        let mut slots = group.slots.borrow_mut();
        let alone = slots[column].len() == 1;
        if alone {
            slots.remove(column);
            geometry.members -= 1;
            group.set_geometry(geometry);
        } else {
            slots[column].retain(|m| m.id != id);
        }
        // Reads and writes in flight keep the device open until they end.
        member.set_device(None);
        Ok(())
    }
}
