//! What becomes of a stream that did not come to its end.

use std::rc::Rc;

use forebay_format::receiving::Receiving;
use forebay_format::snapshot::Snapshot;
use forebay_units::VolumeId;

use crate::Pool;
use crate::admin::error::VolumeError;
use crate::status::PoolEvent;
use crate::transfer::full_name;
use crate::volume::{Arrival, VolumeState};

impl Pool {
    /// Gives up what a volume has of an interrupted stream (its name without the pool's).
    pub async fn abandon_receive(&self, name: &str) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        let volume = self.volume_named(name)?;
        match (volume.arrival.get(), volume.receiving()) {
            (Arrival::Interrupted, Some(receiving)) => self.undo_receive(&volume, &receiving).await,
            (Arrival::Underway, _) => self.check_whole(&volume),
            _ => Err(VolumeError::NotReceiving { name: format!("{}/{name}", self.name()) }),
        }
    }

    /// Takes a volume back to what it was before a stream. The caller has the turn.
    pub(super) async fn undo_receive(
        &self,
        volume: &Rc<VolumeState>,
        receiving: &Receiving,
    ) -> Result<(), VolumeError> {
        let Some(base) = receiving.base else { return self.drop_volume(volume).await };
        let base = self.snapshots.get(VolumeId(base)).filter(|base| !base.is_dying);
        let name = || format!("{}/{}", self.name(), volume.name.borrow());
        let Some(base) = base else {
            return Err(VolumeError::Receiving { name: name(), is_underway: false });
        };
        let newest = self.snapshots.of(volume.id).into_iter().rfind(|other| !other.is_dying);
        match newest.is_some_and(|newest| newest.id == base.id) {
            true => self.go_back_in_parts(volume, &base).await?,
            // The stream's own snapshot was taken, and the stream failed all the same.
            false => self.go_back(volume, &base, Vec::new()).await?,
        }
        self.keep_receiving(volume, None);
        self.commit_all().await?;
        volume.arrival.set(Arrival::Whole);
        Ok(())
    }

    /// After an import: streams that a crash has interrupted are undone, or found to be whole.
    /// Those that were to be kept stay.
    pub(crate) async fn settle_transfers(self: &Rc<Self>) {
        let interrupted: Vec<Rc<VolumeState>> = {
            let volumes = self.volumes.borrow();
            let mine = volumes.values().filter(|v| v.arrival.get() == Arrival::Interrupted);
            mine.cloned().collect()
        };
        for volume in interrupted {
            let Some(_turn) = self.turn_of_task().await else { return };
            let Some(receiving) = volume.receiving() else { continue };
            if volume.arrival.get() != Arrival::Interrupted {
                continue;
            }
            let outcome = match self.received_snapshot(&volume, &receiving) {
                Some(snapshot) => self.reveal(&volume, &receiving, snapshot.id).await,
                None if receiving.is_resumable && receiving.done_bytes > 0 => Ok(()),
                None => self.undo_receive(&volume, &receiving).await,
            };
            if let Err(error) = outcome {
                let volume = full_name(self, &volume.name.borrow());
                self.health.events.push(PoolEvent::StreamNotUndone { volume, error });
            }
        }
    }

    /// The snapshot of a stream, if a root has it. No command takes one of a volume that is not
    /// whole, so one that is newer than the base is the stream's.
    fn received_snapshot(&self, volume: &VolumeState, receiving: &Receiving) -> Option<Snapshot> {
        let found = self.snapshots.named(volume.id, &receiving.snapshot)?;
        receiving.base.is_none_or(|base| found.id.0 > base).then_some(found)
    }
}
