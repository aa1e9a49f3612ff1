//! What a volume has changed since one of its snapshots.

use forebay_units::{Lba, VolumeId};

use crate::Pool;
use crate::admin::error::VolumeError;
use crate::runs::runs_of;

/// Consecutive bytes that were all changed, or all not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedRun {
    /// Length in bytes.
    pub len_bytes: u64,
    /// They may differ.
    pub changed: bool,
}

impl Pool {
    /// The id of volume `VOL` or of snapshot `VOL@SNAP`, and of the volume.
    fn version_named(&self, name: &str) -> Result<(VolumeId, VolumeId), VolumeError> {
        if name.contains('@') {
            let (volume, snapshot) = self.snapshot_named(name)?;
            return Ok((snapshot.id, volume.id));
        }
        let volume = self.volume_named(name)?;
        Ok((volume.id, volume.id))
    }

    /// Names (without the volume's) of the snapshots that are older than a version `VOL` or
    /// `VOL@SNAP`, oldest first.
    pub fn snapshots_before(&self, name: &str) -> Result<Vec<String>, VolumeError> {
        let (version, volume) = self.version_named(name)?;
        let is_older = |id: VolumeId| version == volume || id < version;
        let all = self.snapshots.of(volume).into_iter();
        let older = all.filter(|snapshot| !snapshot.is_dying && is_older(snapshot.id));
        Ok(older.map(|snapshot| snapshot.name).collect())
    }

    /// The snapshot `since` (its name without the volume's) that is older than a version `VOL` or
    /// `VOL@SNAP`.
    #[must_use]
    pub fn snapshot_before(&self, name: &str, since: &str) -> Option<VolumeId> {
        let (version, volume) = self.version_named(name).ok()?;
        let older = self.snapshots.named(volume, since)?.id;
        (version == volume || older < version).then_some(older)
    }

    /// Which parts of a range a version `VOL` or `VOL@SNAP` has changed since the older snapshot
    /// `since`: at least one run, from the start of the range on; the runs may end before the range
    /// does. What was written with what it held counts as changed. `None` when the version or the
    /// snapshot is gone.
    #[must_use]
    pub fn changes_since(
        &self,
        name: &str,
        since: VolumeId,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Option<Vec<ChangedRun>> {
        let (until, _) = self.version_named(name).ok()?;
        self.snapshots.get(since).filter(|snapshot| !snapshot.is_dying)?;
        let map = self.store.map.borrow();
        let groups = self.dirty.groups.borrow();
        let runs = runs_of(offset_bytes, len_bytes, |from, blocks, push| {
            // A snapshot has nothing that is still on its way.
            for piece in groups.lookup(until, Lba(from), blocks) {
                match piece.content {
                    Some(_) => push(piece.blocks, true),
                    None => map.changes((since, until), piece.lba, piece.blocks, push),
                }
            }
        });
        let run = |(len_bytes, changed)| ChangedRun { len_bytes, changed };
        Some(runs.into_iter().map(run).collect())
    }
}
