//! How much an event matters, and what to do about it.

use forebay_pool::status::{EventKind, EventRecord};

use crate::log::Level;

const MEMORY_SHORT: &str =
    "Give the machine more memory, or end other programs: writes are refused.";
const STORE_AWAY: &str =
    "Bring the object store back, or stop what writes: durable writes wait soon.";

fn warning(advice: &str) -> (Level, String) {
    (Level::Warning, advice.to_owned())
}

/// How much `event` matters, and what helps; empty when nothing needs to be done.
#[must_use]
pub fn event_advice(event: &EventRecord) -> (Level, String) {
    let (pool, device) = (&event.pool, event.device.as_deref().unwrap_or("DEV"));
    let status = format!("'forebay pool status {pool}' says what to do.");
    let replace = format!("'forebay pool replace {pool} {device} NEW' puts another in its place");
    match event.event {
        EventKind::ReadFailed | EventKind::Repaired => (
            Level::Notice,
            format!(
                "The data was made good from other devices. 'forebay pool status {pool}' counts \
                 errors: a device with many of them should be replaced."
            ),
        ),
        EventKind::TakenOut => (
            Level::Error,
            format!("{replace}; 'forebay pool clear {pool} {device}' takes it back as it is."),
        ),
        EventKind::StillNeeded => (
            Level::Error,
            format!("{replace}, as long as it can be read; save what matters first."),
        ),
        EventKind::ManyRepairs => (
            Level::Warning,
            format!("'forebay pool status -v {pool}' shows the drive's health; {replace}."),
        ),
        EventKind::LogMemberFailed | EventKind::LogDeviceFailed => {
            (Level::Error, format!("Durable writes go on without it. {replace}."))
        }
        EventKind::LogMemoryChanged => (
            Level::Notice,
            format!("'forebay pool status {pool}' shows what the log's memory outlives now."),
        ),
        EventKind::CacheDeviceFailed => (
            Level::Warning,
            format!(
                "Reads go to the main store. 'forebay pool remove {pool} {device}' forgets it."
            ),
        ),
        EventKind::StoreSilent | EventKind::StoreRequestFails => (Level::Warning, status),
        EventKind::OutageReserveLow => (Level::Error, STORE_AWAY.to_owned()),
        EventKind::SpareTaken => (
            Level::Warning,
            format!("'forebay pool add {pool} spare NEW' provides for the next failure."),
        ),
        EventKind::SpareNotTaken => (Level::Error, status),
        EventKind::LogNotStarted
        | EventKind::ScrubFailed
        | EventKind::ResilverFailed
        | EventKind::LabelDamaged
        | EventKind::StateChanged
        | EventKind::LogDeviceRefused => (Level::Warning, status),
        EventKind::JournalDamaged => warning("The journal of the map is written anew by itself."),
        EventKind::JournalNotRenewed => (
            Level::Error,
            format!("Make room: destroy or trim volumes, or 'forebay pool add {pool}' a group."),
        ),
        EventKind::MemoryShort => (Level::Error, MEMORY_SHORT.to_owned()),
        EventKind::SnapshotNotTaken => warning("The next one is taken when it is due."),
        EventKind::StreamNotUndone => {
            (Level::Error, "'forebay volume receive -A' gives the stream up.".to_owned())
        }
        EventKind::Suspended => (
            Level::Error,
            format!("When its devices are back, 'forebay pool clear {pool}' goes on."),
        ),
        EventKind::StoreAnswers | EventKind::LogDeviceReturned | EventKind::Import => {
            (Level::Notice, String::new())
        }
        EventKind::ScanBegan | EventKind::ScanEnded => (Level::Info, String::new()),
    }
}
