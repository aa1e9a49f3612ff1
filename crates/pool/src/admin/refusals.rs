//! What the commands that take volumes from their clients refuse.
//!
//! Enters: what such a command is given. Leaves: the error with which it would refuse at once.
//! Always holds: nothing changes. Who calls: who cuts clients off for a command, before that: a
//! command that is refused leaves them alone.

use crate::Pool;
use crate::admin::error::VolumeError;

impl Pool {
    /// Whether each command on volumes refuses, because the pool is suspended.
    pub fn check_not_suspended(&self) -> Result<(), VolumeError> {
        match self.lifecycle.stopped.borrow().clone() {
            Some(reason) => Err(VolumeError::Suspended { pool: self.name(), reason }),
            None => Ok(()),
        }
    }

    /// Whether [`Pool::destroy_volume`] refuses.
    pub fn check_destroy_volume(&self, name: &str, recursive: bool) -> Result<(), VolumeError> {
        self.volume_to_destroy(name, recursive).map(drop)
    }

    /// Whether [`Pool::destroy_snapshots`] refuses.
    pub fn check_destroy_snapshots(&self, names: &[String]) -> Result<(), VolumeError> {
        self.snapshots_to_destroy(names).map(drop)
    }

    /// Whether [`Pool::roll_back_volume`] refuses.
    pub async fn check_roll_back(
        &self,
        name: &str,
        destroy_newer: bool,
    ) -> Result<(), VolumeError> {
        let (volume, snapshot, _) = self.newer_to_destroy(name, destroy_newer)?;
        self.room_to_roll_back(&volume, &snapshot).await.map(drop)
    }

    /// Whether [`Pool::rename_volume`] refuses.
    pub fn check_rename_volume(&self, name: &str, new: &str) -> Result<(), VolumeError> {
        self.volume_to_rename(name, new).map(drop)
    }

    /// Whether [`Pool::rename_snapshot`] refuses.
    pub fn check_rename_snapshot(&self, name: &str, new: &str) -> Result<(), VolumeError> {
        self.snapshot_to_rename(name, new).map(drop)
    }

    /// Whether [`Pool::promote_volume`] refuses.
    pub fn check_promote(&self, name: &str) -> Result<(), VolumeError> {
        self.promotion_of(name).map(drop)
    }
}
