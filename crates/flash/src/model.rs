//! The interface of every simulated device: requests, completions, power.

use std::fmt;

use forebay_units::Nanos;

use crate::chance::Chance;
use crate::stats::Stats;
use crate::zoned::ZoneRefusal;

/// A host write, counted from 1 over the device's life in order of submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Read a range.
    Read,
    /// Write a range.
    Write,
    /// Make all completed writes durable.
    Flush,
    /// Forget a range.
    Trim,
    /// Forget everything and erase.
    SecureErase,
}

/// What is written, as far as a compressing controller can tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content<'a> {
    /// Pseudo-random: does not compress.
    Random,
    /// Compresses to this many thousandths of its size (1 to 1000).
    Stored(u16),
    /// The bytes themselves, as long as the request; measured with LZ4 where it matters.
    Bytes(&'a [u8]),
}

/// One request to a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<'a> {
    /// What to do.
    pub kind: RequestKind,
    /// First byte; a multiple of 512. 0 for flush and secure erase.
    pub offset_bytes: u64,
    /// Bytes; a multiple of 512. 0 for flush and secure erase.
    pub len_bytes: u64,
    /// For writes: durable before it completes.
    pub fua: bool,
    /// For writes: what is written.
    pub content: Content<'a>,
    /// For writes: the stream, from 0. A device with fewer streams takes it as stream 0.
    pub stream: u8,
}

impl<'a> Request<'a> {
    fn of(kind: RequestKind, offset_bytes: u64, len_bytes: u64) -> Self {
        Self { kind, offset_bytes, len_bytes, fua: false, content: Content::Random, stream: 0 }
    }

    /// Reads a range.
    #[must_use]
    pub fn read(offset_bytes: u64, len_bytes: u64) -> Self {
        Self::of(RequestKind::Read, offset_bytes, len_bytes)
    }

    /// Writes pseudo-random data to a range.
    #[must_use]
    pub fn write(offset_bytes: u64, len_bytes: u64) -> Self {
        Self::of(RequestKind::Write, offset_bytes, len_bytes)
    }

    /// Makes all completed writes durable.
    #[must_use]
    pub fn flush() -> Self {
        Self::of(RequestKind::Flush, 0, 0)
    }

    /// Forgets a range.
    #[must_use]
    pub fn trim(offset_bytes: u64, len_bytes: u64) -> Self {
        Self::of(RequestKind::Trim, offset_bytes, len_bytes)
    }

    /// Erases everything.
    #[must_use]
    pub fn secure_erase() -> Self {
        Self::of(RequestKind::SecureErase, 0, 0)
    }

    /// The same write, durable before it completes.
    #[must_use]
    pub fn fua(self) -> Self {
        Self { fua: true, ..self }
    }

    /// The same write as a part of this stream.
    #[must_use]
    pub fn on_stream(self, stream: u8) -> Self {
        Self { stream, ..self }
    }

    /// The same write of this content.
    #[must_use]
    pub fn with(self, content: Content<'a>) -> Self {
        Self { content, ..self }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// As asked.
    Done,
    /// A read met data that a power cut ruined; the first such range.
    Unreadable {
        /// First ruined byte the device names, not before the request's own.
        offset_bytes: u64,
        /// Ruined bytes from there on.
        len_bytes: u64,
    },
    /// A write to a device whose flash is worn out: nothing was written.
    WornOut,
}

/// When and how a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The instant the host learns of it.
    pub at: Nanos,
    /// For writes, its number; otherwise the number of the last write before.
    pub write: WriteId,
    /// How it ended.
    pub status: Status,
}

/// A request no device can carry out: the caller's mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The range leaves the device.
    OutOfRange {
        /// The device.
        device: String,
        /// First byte asked for.
        offset_bytes: u64,
        /// Bytes asked for.
        len_bytes: u64,
        /// Bytes there are.
        capacity_bytes: u64,
    },
    /// Offset or length is not a multiple of 512, or a length is 0.
    Misaligned {
        /// The device.
        device: String,
        /// First byte asked for.
        offset_bytes: u64,
        /// Bytes asked for.
        len_bytes: u64,
    },
    /// `now` is before an earlier call's.
    TimeRanBackwards {
        /// The device.
        device: String,
        /// The time given.
        now: Nanos,
        /// The latest time given before.
        latest: Nanos,
    },
    /// The request breaks the rules of the device's zones.
    Zone {
        /// The device.
        device: String,
        /// The rule.
        why: ZoneRefusal,
    },
    /// The device is switched off.
    PoweredOff {
        /// The device.
        device: String,
    },
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { device, offset_bytes, len_bytes, capacity_bytes } => write!(
                f,
                "device \"{device}\": {len_bytes} bytes at {offset_bytes} leave its \
                 {capacity_bytes} bytes"
            ),
            Self::Misaligned { device, offset_bytes, len_bytes } => write!(
                f,
                "device \"{device}\": {len_bytes} bytes at {offset_bytes} are not whole \
                 512-byte sectors"
            ),
            Self::TimeRanBackwards { device, now, latest } => write!(
                f,
                "device \"{device}\": called at {} ns after it was called at {} ns; submit in \
                 order of time",
                now.0, latest.0
            ),
            Self::Zone { device, why } => write!(f, "device \"{device}\": {why}"),
            Self::PoweredOff { device } => {
                write!(f, "device \"{device}\": switched off; call power_on first")
            }
        }
    }
}

impl std::error::Error for RequestError {}

/// What a power cut did to a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The write never reached the medium: the range holds what it held before that write.
    Lost,
    /// The write reached the medium but its map entry did not: as [`Fate::Lost`].
    RolledBack,
    /// The first `intact_bytes` of the range are written, the rest holds what it held before.
    Shorn {
        /// Bytes written, a multiple of 512 below the range's length.
        intact_bytes: u64,
    },
    /// The range can no longer be read; reads fail until it is written again or trimmed.
    Unreadable,
}

/// One range a power cut damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes.
    pub len_bytes: u64,
    /// The damaged write; `None` when data at rest is damaged.
    pub write: Option<WriteId>,
    /// What happened.
    pub fate: Fate,
}

/// What a power cut did. To get the contents after it: take the writes not yet durable (see
/// [`Model::durable_before`]) in order, drop those from `undone_from` on, apply each without its
/// damaged ranges, then mark the unreadable ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutReport {
    /// Damaged ranges, by write, data at rest last.
    pub damage: Vec<Damage>,
    /// Every write from this one on is undone altogether.
    pub undone_from: Option<WriteId>,
}

/// The result of switching on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PowerOn {
    /// When the device answers; earlier requests wait.
    pub ready_at: Nanos,
    /// Damage that shows only now, such as a backup that cannot be read.
    pub damage: Vec<Damage>,
}

/// What a device reports about itself. A device may lie: it may ignore FLUSH or FUA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Bytes offered.
    pub capacity_bytes: u64,
    /// Whether completed writes may be lost without a flush.
    pub volatile_cache: bool,
    /// The write size and alignment it handles best.
    pub best_write_bytes: u32,
    /// Commands it takes at once.
    pub queue_depth: u32,
}

/// A simulated device. Every call takes the caller's `now`, which never runs backwards, and
/// returns at once with instants in the future. Contents stay with the caller.
pub trait Model: Send {
    /// The name from its description.
    fn name(&self) -> &str;

    /// What it says of itself.
    fn identity(&self) -> Identity;

    /// Takes a request and says when it completes.
    ///
    /// # Errors
    /// [`RequestError`] when no device could carry the request out; nothing has happened then.
    fn submit(&mut self, now: Nanos, request: &Request<'_>) -> Result<Completion, RequestError>;

    /// Cuts power. Requests that complete after `now` are not acknowledged: each may have taken
    /// effect wholly, in part or not at all, as the report says.
    fn power_cut(&mut self, now: Nanos, chance: &mut Chance) -> CutReport;

    /// Switches on after a cut (a new device is on).
    fn power_on(&mut self, now: Nanos, chance: &mut Chance) -> PowerOn;

    /// All writes before the one returned survive a cut at `now` or later, by design of the
    /// device; callers may forget their history. Data at rest may still become unreadable.
    fn durable_before(&mut self, now: Nanos) -> WriteId;

    /// What was done up to `now`.
    fn stats(&self, now: Nanos) -> Stats;

    /// A number that follows from the whole state: equal for equal histories.
    fn digest(&self) -> u64;

    /// The device's own view for callers that need more than the trait.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// The checks every model makes before it takes a request.
pub(crate) fn check_request(
    device: &str,
    capacity_bytes: u64,
    request: &Request<'_>,
) -> Result<(), RequestError> {
    let (offset_bytes, len_bytes) = (request.offset_bytes, request.len_bytes);
    if matches!(request.kind, RequestKind::Flush | RequestKind::SecureErase) {
        return Ok(());
    }
    if offset_bytes % 512 != 0 || len_bytes % 512 != 0 || len_bytes == 0 {
        return Err(RequestError::Misaligned {
            device: device.to_owned(),
            offset_bytes,
            len_bytes,
        });
    }
    if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > capacity_bytes) {
        return Err(RequestError::OutOfRange {
            device: device.to_owned(),
            offset_bytes,
            len_bytes,
            capacity_bytes,
        });
    }
    Ok(())
}
