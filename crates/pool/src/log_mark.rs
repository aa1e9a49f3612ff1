//! The log mark: data devices are told how far the log has come. An import then knows which frames
//! were durable, even if every log device comes back without its last ones.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_format::label::{LOG_MARK_BYTES, LOG_MARK_OFFSET_BYTES, LogMark};
use forebay_rt as rt;
use forebay_units::{DeviceId, Nanos};

use crate::Pool;
use crate::settings::LogWitness;

/// The longest time between a frame and its mark.
const LONGEST_PAUSE: Nanos = Nanos::from_secs(1);
/// The same while a data device is in an object store, where each mark costs a request.
const LONGEST_STORE_PAUSE: Nanos = Nanos::from_secs(5);
/// The shortest time between two marks, unless durable writes wait for them.
const SHORTEST_PAUSE: Nanos = Nanos::from_millis(100);

impl Pool {
    /// Runs until the pool is exported or stopped.
    pub(crate) async fn log_mark_loop(self: Rc<Self>) {
        let has_ended = || self.lifecycle.closing.get() || self.is_stopped();
        let mut seen = LogMark::default();
        let mut slots = BTreeMap::new();
        for turn in 0.. {
            let ended = Box::pin(self.sync.done.until(has_ended));
            match rt::select(Box::pin(self.log.mark_after(seen)), ended).await {
                rt::Either::Left((mark, _)) if !has_ended() => {
                    let is_written = self.write_log_mark(mark, turn, &mut slots).await;
                    if is_written {
                        self.log.witnessed(mark);
                        seen = mark;
                    }
                    self.pause_log_marks(is_written).await;
                }
                _ => return,
            }
        }
    }

    /// Writes a mark to the next data device that takes it. Of the two slots there it is the one
    /// that `slots` names, which has not the last mark: a torn write leaves that. Returns whether
    /// any device took it.
    async fn write_log_mark(
        &self,
        mark: LogMark,
        turn: usize,
        slots: &mut BTreeMap<DeviceId, u64>,
    ) -> bool {
        let devices = self.label_devices();
        for at in turn..turn + devices.len() {
            let (id, open) = &devices[at % devices.len()];
            let slot = slots.entry(*id).or_default();
            let offset = LOG_MARK_OFFSET_BYTES + *slot * LOG_MARK_BYTES;
            let block = IoBuf::copy_of(&mark.encode(self.guid)).freeze();
            let device = open.device();
            match device.write(offset, block, true).await {
                Ok(()) => {
                    *slot ^= 1;
                    return true;
                }
                Err(error) => self.durable_write_failed(*id, &device, error),
            }
        }
        false
    }

    async fn pause_log_marks(&self, is_written: bool) {
        let begun = rt::now();
        let has_ended = || self.lifecycle.closing.get() || self.is_stopped();
        let in_store = self.has_store_member();
        let is_due = || match self.settings.get().log_witness {
            LogWitness::Always if is_written => true,
            LogWitness::Always => rt::now().since(begun) >= SHORTEST_PAUSE,
            LogWitness::Idle if in_store => rt::now().since(begun) >= LONGEST_STORE_PAUSE,
            LogWitness::Idle => {
                let age = rt::now().since(begun);
                age >= SHORTEST_PAUSE && self.store.in_flight.is_empty() || age >= LONGEST_PAUSE
            }
            LogWitness::Second => rt::now().since(begun) >= LONGEST_PAUSE,
        };
        while !is_due() && !has_ended() {
            let ended = Box::pin(self.sync.done.until(has_ended));
            let _ = rt::timeout(SHORTEST_PAUSE, ended).await;
        }
    }
}
