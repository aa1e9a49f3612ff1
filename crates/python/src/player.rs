//! Player: requests given to a model at their instants, or a constant number of them outstanding.

use forebay_flash::{
    Content, DeviceSpec, Model, Request, RequestError, RequestKind, Stats, Status,
};
use forebay_lab::{LabError, catalogue};
use forebay_units::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

/// The kinds of request by their codes.
pub const KINDS: [RequestKind; 5] = [
    RequestKind::Read,
    RequestKind::Write,
    RequestKind::Flush,
    RequestKind::Trim,
    RequestKind::SecureErase,
];
/// Requests between two questions whether to go on.
const ASK_EVERY: usize = 1 << 16;

/// Columns of requests, all of the same length.
#[derive(Clone, Copy, Debug)]
pub struct Requests<'a> {
    /// Codes of [`KINDS`].
    pub ops: &'a [u8],
    /// First blocks.
    pub lbas: &'a [i64],
    /// Numbers of blocks.
    pub blocks: &'a [i64],
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Of writes: durable before they complete.
    pub fua: &'a [bool],
    /// Of writes: their stream.
    pub streams: &'a [u8],
    /// Of writes: thousandths of their size that compression leaves; 1000 does not compress.
    pub stored: &'a [u16],
}

/// Columns of what became of requests, in nanoseconds of the model's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completions {
    /// When the device got the request.
    pub submitted_ns: Vec<i64>,
    /// When it completed.
    pub completed_ns: Vec<i64>,
    /// 0 done, 1 unreadable, 2 refused because the device is worn out.
    pub statuses: Vec<u8>,
}

/// A column of requests that a model cannot be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlayError {
    /// A column has another length than the first.
    Length {
        /// The column.
        column: &'static str,
        /// Its length.
        found: usize,
        /// Requests there are.
        requests: usize,
    },
    /// A number is out of range.
    OutOfRange {
        /// The request, from 0.
        index: usize,
        /// The column.
        column: &'static str,
        /// The number.
        found: i64,
        /// What it may be.
        allowed: &'static str,
    },
    /// An instant lies before an earlier one.
    Backwards {
        /// The request, from 0.
        index: usize,
        /// The instant.
        time_ns: i64,
        /// The earlier one.
        latest_ns: u64,
    },
    /// The model refuses the request.
    Refused {
        /// The request, from 0.
        index: usize,
        /// Why.
        cause: RequestError,
    },
    /// The caller does not want to go on.
    Interrupted,
}

impl fmt::Display for PlayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { column, found, requests } => {
                write!(f, "{column} has {found} entries for {requests} requests")
            }
            Self::OutOfRange { index, column, found, allowed } => {
                write!(f, "request {index}: {column} is {found}, not {allowed}")
            }
            Self::Backwards { index, time_ns, latest_ns } => write!(
                f,
                "request {index}: its time {time_ns} ns is before {latest_ns} ns, when the device \
                 got the request before it"
            ),
            Self::Refused { index, cause } => write!(f, "request {index}: {cause}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for PlayError {}

impl<'a> Requests<'a> {
    fn check(&self) -> Result<(), PlayError> {
        let requests = self.ops.len();
        for (column, found) in [
            ("lba", self.lbas.len()),
            ("blocks", self.blocks.len()),
            ("fua", self.fua.len()),
            ("stream", self.streams.len()),
            ("stored", self.stored.len()),
        ] {
            if found != requests {
                return Err(PlayError::Length { column, found, requests });
            }
        }
        Ok(())
    }

    fn at(&self, index: usize) -> Result<Request<'a>, PlayError> {
        let wrong =
            |column, found, allowed| PlayError::OutOfRange { index, column, found, allowed };
        let code = self.ops[index];
        let kind = *KINDS
            .get(usize::from(code))
            .ok_or_else(|| wrong("op", i64::from(code), "the code of a kind of request"))?;
        let bytes = |column, count: i64| {
            let bytes = u64::try_from(count).ok();
            let bytes = bytes.and_then(|count| count.checked_mul(u64::from(self.block_bytes)));
            bytes.ok_or_else(|| wrong(column, count, "from 0 to the end of the device"))
        };
        let offset = bytes("lba", self.lbas[index])?;
        let len = bytes("blocks", self.blocks[index])?;
        Ok(match kind {
            RequestKind::Read => Request::read(offset, len),
            RequestKind::Flush => Request::flush(),
            RequestKind::Trim => Request::trim(offset, len),
            RequestKind::SecureErase => Request::secure_erase(),
            RequestKind::Write => {
                let write = Request::write(offset, len).on_stream(self.streams[index]);
                let write = match self.stored[index] {
                    1000 => write,
                    thousandths @ 1..1000 => write.with(Content::Stored(thousandths)),
                    other => return Err(wrong("stored", i64::from(other), "from 1 to 1000")),
                };
                if self.fua[index] { write.fua() } else { write }
            }
        })
    }
}

/// A model with its clock.
pub struct Player {
    model: Box<dyn Model>,
    /// How many times smaller than the device the model is.
    scale: f64,
    /// The model takes no request before this instant.
    now_ns: u64,
    /// The last instant at which a request completes.
    latest_ns: u64,
}

impl Player {
    /// The model of `device` at 1/`scale` of its size (0: small enough to be quick), new and empty.
    ///
    /// # Errors
    /// The description is impossible.
    pub fn new(device: &DeviceSpec, scale: u32, seed: u64) -> Result<Self, LabError> {
        let (model, scale) = catalogue::model(device, scale, seed)?;
        Ok(Self { model, scale, now_ns: 0, latest_ns: 0 })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &dyn Model {
        self.model.as_ref()
    }

    /// How many times smaller than the device the model is.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The instant from which on the model takes requests.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The model's counters when everything that it was given has completed.
    #[must_use]
    pub fn counters(&self) -> Stats {
        self.model.stats(Nanos(self.now_ns.max(self.latest_ns)))
    }

    fn submit(
        &mut self,
        index: usize,
        requests: &Requests<'_>,
        done: &mut Completions,
    ) -> Result<u64, PlayError> {
        let request = requests.at(index)?;
        let completion = self
            .model
            .submit(Nanos(self.now_ns), &request)
            .map_err(|cause| PlayError::Refused { index, cause })?;
        let at = completion.at.0;
        self.latest_ns = self.latest_ns.max(at);
        done.submitted_ns.push(self.now_ns as i64);
        done.completed_ns.push(at as i64);
        done.statuses.push(match completion.status {
            Status::Done => 0,
            Status::Unreadable { .. } => 1,
            Status::WornOut => 2,
        });
        Ok(at)
    }

    /// Gives each request at its instant, whatever the device does. `goes_on` is asked now and
    /// then.
    ///
    /// # Errors
    /// The first request that cannot be given; those before it have been.
    pub fn play_at(
        &mut self,
        times_ns: &[i64],
        requests: &Requests<'_>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Completions, PlayError> {
        requests.check()?;
        let (found, count) = (times_ns.len(), requests.ops.len());
        if found != count {
            return Err(PlayError::Length { column: "time", found, requests: count });
        }
        let mut done = Completions::with_room(count);
        for (index, &time_ns) in times_ns.iter().enumerate() {
            if index % ASK_EVERY == ASK_EVERY - 1 && !goes_on() {
                return Err(PlayError::Interrupted);
            }
            let latest_ns = self.now_ns;
            self.now_ns = u64::try_from(time_ns)
                .ok()
                .filter(|time_ns| *time_ns >= latest_ns)
                .ok_or(PlayError::Backwards { index, time_ns, latest_ns })?;
            self.submit(index, requests, &mut done)?;
        }
        Ok(done)
    }

    /// Keeps `outstanding` requests in the device, each given when an earlier one completes, and
    /// waits for the last. `goes_on` is asked now and then.
    ///
    /// # Errors
    /// The first request that cannot be given; those before it have been.
    pub fn play_closed(
        &mut self,
        outstanding: usize,
        requests: &Requests<'_>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Completions, PlayError> {
        requests.check()?;
        let mut done = Completions::with_room(requests.ops.len());
        let mut in_flight: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
        for index in 0..requests.ops.len() {
            if index % ASK_EVERY == ASK_EVERY - 1 && !goes_on() {
                return Err(PlayError::Interrupted);
            }
            if in_flight.len() >= outstanding.max(1) {
                if let Some(Reverse(at)) = in_flight.pop() {
                    self.now_ns = self.now_ns.max(at);
                }
            }
            in_flight.push(Reverse(self.submit(index, requests, &mut done)?));
        }
        self.now_ns = self.now_ns.max(self.latest_ns);
        Ok(done)
    }
}

impl Completions {
    fn with_room(requests: usize) -> Self {
        Self {
            submitted_ns: Vec::with_capacity(requests),
            completed_ns: Vec::with_capacity(requests),
            statuses: Vec::with_capacity(requests),
        }
    }
}

#[cfg(test)]
mod tests;
