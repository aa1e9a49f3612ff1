//! Saves: the memory goes to the image on the backup device. Arming: the memory goes ahead of it.

use std::rc::Rc;

use forebay_device::{Cause, DeviceError, DramReason, DramState, IoBuf, IoBytes, Operation};
use forebay_format::dram::{
    BackupHeader, CHUNK_BYTES, DramPlace, DramProtection, IMAGE_START_BYTES, MemoryHeader,
};
use forebay_rt as rt;
use forebay_rt::StreamExt;
use forebay_units::Nanos;

use crate::device::Shared;

/// Bytes of a command of a save.
const COMMAND_BYTES: u64 = 1 << 20;
/// Commands under way at once.
const COMMANDS_MAX: usize = 8;
/// A save of this many bytes says how fast the backup device is.
const MEASURED_MIN_BYTES: u64 = 64 << 20;

/// A write on its way to the backup device. It ends with the command, not with the caller.
struct Through(Rc<Shared>);

impl Drop for Through {
    fn drop(&mut self) {
        self.0.through.set(self.0.through.get() - 1);
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// Writes to the backup device, and to the memory what the memory has of the place.
    pub async fn write_through(
        self: Rc<Self>,
        offset: u64,
        data: IoBytes,
    ) -> Result<(), DeviceError> {
        let backup = self.backup.clone().expect("such states are those of devices with one");
        let len = data.len() as u64;
        self.through.set(self.through.get() + 1);
        let under_way = Through(self.clone());
        if let Some(memory) = &*self.memory.borrow() {
            // If the device is armed meanwhile, the next save has the chunk once more.
            self.mark(&**memory, offset, len, 1);
        }
        let command = rt::spawn(async move {
            let outcome = backup.write(IMAGE_START_BYTES + offset, data.clone(), true).await;
            if outcome.is_ok() {
                under_way.0.follow(offset, &data);
            }
            outcome
        });
        command.await
    }

    /// Brings what the image lacks to the backup device, unless it lacks nothing. Writes wait.
    pub async fn save(self: Rc<Self>, reason: DramReason) -> Result<(), DeviceError> {
        let _turn = self.turn.lock().await;
        if self.header.borrow().place == DramPlace::Image {
            return Ok(());
        }
        self.set_state(DramState::Saving, Some(reason.clone()));
        // A write that began before this one was armed must not land on top of a newer chunk.
        self.changed.until(|| self.through.get() == 0).await;
        let saved = self.copy_out().await;
        match &saved {
            Ok(()) => self.set_state(DramState::Saved, Some(reason)),
            Err(error) => {
                let cause = Cause::new(error.clone());
                self.set_state(DramState::SaveFailed, Some(DramReason::BackupFailed { cause }));
            }
        }
        saved
    }

    async fn copy_out(&self) -> Result<(), DeviceError> {
        let backup = self.backup.clone().expect("a device without one is never saved");
        let memory = self.memory.borrow().clone().expect("it is ahead of the image");
        let began = rt::now();
        let chunks = self.unsaved_chunks(&*memory);
        let mut rest = runs_of(&chunks, self.size_bytes()).into_iter();
        let mut under_way = rt::FuturesUnordered::new();
        let write = |(start_bytes, len_bytes): (u64, u64)| {
            let mut buf = IoBuf::zeroed(len_bytes as usize);
            memory.read(self.content_start() + start_bytes, &mut buf);
            backup.write(IMAGE_START_BYTES + start_bytes, buf.freeze(), false)
        };
        under_way.extend(rest.by_ref().take(COMMANDS_MAX).map(write));
        while let Some(outcome) = under_way.next().await {
            outcome?;
            under_way.extend(rest.by_ref().take(1).map(write));
        }
        backup.flush().await?;
        let bytes = chunks.len() as u64 * CHUNK_BYTES;
        let took = rt::now().since(began);
        let mut header = self.next_header();
        header.place = DramPlace::Image;
        if bytes >= MEASURED_MIN_BYTES {
            header.save_bytes_per_s = rate(bytes, took);
        }
        self.write_header(header).await?;
        for chunk in chunks {
            self.mark(&*memory, chunk * CHUNK_BYTES, 1, 0);
        }
        Ok(())
    }

    /// Lets the memory go ahead of the image. The image stays as it is.
    pub async fn arm(self: Rc<Self>) {
        let _turn = self.turn.lock().await;
        let memory = self.memory.borrow().clone();
        let can_arm = self.restoring.borrow().is_none() && !self.is_closed.get();
        let Some(memory) = memory.filter(|_| can_arm) else { return };
        let mut header = self.next_header();
        header.generation += 1;
        header.place = DramPlace::Memory;
        let (id, generation, size_bytes) = (header.id, header.generation, header.size_bytes);
        let protection = header.protection.clone();
        memory.write(0, &MemoryHeader { id, generation, size_bytes, alone: None }.encode());
        // From the moment that the header may be on media, the image counts no more.
        let written = self.write_header(header).await;
        match written {
            Ok(()) if protection == DramProtection::None => {
                self.set_state(DramState::Unprotected, None);
            }
            Ok(()) => self.set_state(DramState::Armed, None),
            Err(error) => {
                let cause = Cause::new(error);
                self.set_state(DramState::SaveFailed, Some(DramReason::BackupFailed { cause }));
            }
        }
    }

    fn next_header(&self) -> BackupHeader {
        let mut header = self.header.borrow().clone();
        header.sequence += 1;
        header
    }

    /// Writes the header. If that fails, either may be on media, and the memory is taken to be
    /// ahead.
    async fn write_header(&self, header: BackupHeader) -> Result<(), DeviceError> {
        let backup = self.backup.clone().expect("it has the header");
        let bytes = IoBuf::copy_of(&header.encode()).freeze();
        let outcome = backup.write(header.slot_bytes(), bytes, true).await;
        let place = if outcome.is_ok() { header.place } else { DramPlace::Memory };
        *self.header.borrow_mut() = BackupHeader { place, ..header };
        outcome.map_err(|e| DeviceError { operation: Operation::Write, ..e })
    }
}

/// Bytes a second.
pub(crate) fn rate(bytes: u64, took: Nanos) -> u64 {
    let nanos = u128::from(took.0.max(1));
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX).max(1)
}

/// Ranges of bytes, each of a command at most, that hold `chunks`, which are in order.
fn runs_of(chunks: &[u64], size_bytes: u64) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for chunk in chunks {
        let start = chunk * CHUNK_BYTES;
        let len = CHUNK_BYTES.min(size_bytes - start);
        match runs.last_mut() {
            Some(run) if run.0 + run.1 == start && run.1 + len <= COMMAND_BYTES => run.1 += len,
            _ => runs.push((start, len)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_hold_the_chunks_and_end_with_the_device() {
        let runs = runs_of(&[0, 1, 3, 18], 18 * CHUNK_BYTES + 4096);
        let k = CHUNK_BYTES;
        assert_eq!(runs, [(0, 2 * k), (3 * k, k), (18 * k, 4096)]);
        let all: Vec<u64> = (0..20).collect();
        assert_eq!(runs_of(&all, 20 * k), [(0, 16 * k), (16 * k, 4 * k)]);
    }

    #[test]
    fn rate_is_bytes_a_second() {
        assert_eq!(rate(500, Nanos::from_millis(250)), 2000);
        assert_eq!(rate(1, Nanos::from_secs(9)), 1, "never 0: it divides");
    }
}
