//! What a pool shows of a device in an object store.

use std::fmt;

use forebay_device::{FailingRequest, ObjectStats};
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

use super::PoolEvent;

/// A silence of the store that is shorter is not told: a single request may take as long.
const SILENCE_TOLD_AFTER: Nanos = Nanos::from_secs(5);

/// A device in an object store. Requests and bytes are counted since the device was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectsStatus {
    /// Objects that hold blocks.
    pub objects: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Bytes that wait in memory for their objects to be stored.
    pub waiting_bytes: u64,
    /// Requests that store an object, repeated ones included.
    pub puts: u64,
    /// Bytes of these.
    pub put_bytes: u64,
    /// Requests for an object or a part of one.
    pub gets: u64,
    /// Bytes that they brought.
    pub got_bytes: u64,
    /// Requests for names.
    pub lists: u64,
    /// Objects that were deleted.
    pub deletes: u64,
    /// Requests that were made again because the store did not answer.
    pub retries: u64,
    /// For how many seconds the store has answered nothing; none while it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_secs: Option<u64>,
    /// What the last request failed with meanwhile; none if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_error: Option<String>,
    /// Requests that fail again and again while others are answered, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<FailingRequestStatus>,
}

/// A request that fails again and again while the store answers others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingRequestStatus {
    /// `put`, `get`, `list` or `delete`.
    pub request: String,
    /// The object, or the first of several; the prefix of a listing.
    pub object: String,
    /// For how many seconds it has failed.
    pub failing_secs: u64,
    /// How often it was made.
    pub attempts: u64,
    /// The last failure.
    pub error: String,
}

pub(crate) fn whole_secs(span: Nanos) -> u64 {
    span.as_secs_f64() as u64
}

/// An event of an object store, in words; no other has any.
pub(super) fn tell_of_store(f: &mut fmt::Formatter<'_>, event: &PoolEvent) -> fmt::Result {
    let rate = "at the present rate";
    match event {
        PoolEvent::StoreSilent { device, error, lasts_secs } => {
            write!(f, "the object store of {device} does not answer")?;
            error.iter().try_for_each(|error| write!(f, ": {error}"))?;
            let mut lasts = lasts_secs.iter();
            lasts.try_for_each(|secs| write!(f, "; durable writes go on for {secs} s {rate}"))
        }
        PoolEvent::StoreAnswers { device } => {
            write!(f, "the object store of {device} answers again")
        }
        PoolEvent::OutageReserveLow { lasts_secs: secs } => {
            write!(f, "the object store is away, and durable writes go on for {secs} s only {rate}")
        }
        PoolEvent::StoreRequestFails { device, failing } => write!(f, "{device}: {failing}"),
        _ => Ok(()),
    }
}

impl From<FailingRequest> for FailingRequestStatus {
    fn from(failing: FailingRequest) -> Self {
        let FailingRequest { request, object, failing_for, attempts, error } = failing;
        let (request, failing_secs) = (request.to_string(), whole_secs(failing_for));
        Self { request, object, failing_secs, attempts, error }
    }
}

impl fmt::Display for FailingRequestStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, object, failing_secs, attempts, error } = self;
        write!(
            f,
            "{request} of {object} has failed for {failing_secs} s, {attempts} times, while the \
             store answers others: {error}"
        )
    }
}

impl From<ObjectStats> for ObjectsStatus {
    fn from(stats: ObjectStats) -> Self {
        let ObjectStats { objects, stored_bytes, waiting_bytes, puts, put_bytes, gets, .. } = stats;
        let ObjectStats { got_bytes, lists, deletes, retries, failing, .. } = stats;
        let ObjectStats { silent_for, silent_error, .. } = stats;
        let silent_for = silent_for.filter(|silent| *silent >= SILENCE_TOLD_AFTER);
        Self {
            objects,
            stored_bytes,
            waiting_bytes,
            puts,
            put_bytes,
            gets,
            got_bytes,
            lists,
            deletes,
            retries,
            silent_secs: silent_for.map(whole_secs),
            silent_error: silent_for.and(silent_error),
            failing: failing.into_iter().map(FailingRequestStatus::from).collect(),
        }
    }
}

/// What a pool has in object stores, and what it asked of them since its devices were opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreSummary {
    /// Objects that hold blocks.
    pub objects: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Puts, gets and listings, repeated ones included.
    pub requests: u64,
    /// Requests that were made again because the store did not answer.
    pub retries: u64,
    /// What that costs.
    pub cost: StoreCost,
}

/// Cost by the property `store_prices`, in its currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreCost {
    /// Of requests since the devices were opened.
    pub requests: f64,
    /// Of what was read since then.
    pub egress: f64,
    /// Of what is stored, for a month.
    pub stored_a_month: f64,
}

/// How long durable writes go on without the object store, if the clients write as they do now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutageReserve {
    /// Bytes that the log can still take.
    pub log_free_bytes: u64,
    /// Bytes that go to the log each second, over the last ten seconds or so.
    pub log_bytes_per_sec: u64,
    /// Bytes that memory can still take (`dirty_limit`).
    pub memory_free_bytes: u64,
    /// Bytes that clients write each second.
    pub write_bytes_per_sec: u64,
    /// Seconds until the pool is suspended (`device_timeout`), as of now; none if it never is.
    pub timeout_secs: Option<u64>,
    /// Seconds that are left of all that; none if nothing limits them.
    pub secs: Option<u64>,
    /// What ends first.
    pub limit: Option<ReserveLimit>,
}

/// What ends durable writes while the object store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReserveLimit {
    /// The log is full.
    Log,
    /// Memory is full.
    Memory,
    /// The pool is suspended.
    DeviceTimeout,
}

impl OutageReserve {
    /// With the seconds that follow from the other figures.
    pub(crate) fn of(self) -> Self {
        // Writers that wait already have no rate.
        let at = |free: u64, rate: u64| if free == 0 { Some(0) } else { free.checked_div(rate) };
        let limits = [
            (at(self.log_free_bytes, self.log_bytes_per_sec), ReserveLimit::Log),
            (at(self.memory_free_bytes, self.write_bytes_per_sec), ReserveLimit::Memory),
            (self.timeout_secs, ReserveLimit::DeviceTimeout),
        ];
        let known = limits.into_iter().filter_map(|(secs, limit)| Some((secs?, limit)));
        let first = known.min_by_key(|(secs, _)| *secs);
        Self { secs: first.map(|(secs, _)| secs), limit: first.map(|(_, limit)| limit), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_first_limits_the_reserve() {
        let reserve = OutageReserve {
            log_free_bytes: 100,
            log_bytes_per_sec: 10,
            memory_free_bytes: 1000,
            write_bytes_per_sec: 50,
            timeout_secs: Some(30),
            ..OutageReserve::default()
        };
        let ends = |reserve: OutageReserve| {
            let OutageReserve { secs, limit, .. } = reserve.of();
            secs.zip(limit)
        };
        assert_eq!(ends(reserve), Some((10, ReserveLimit::Log)));
        let reserve = OutageReserve { log_bytes_per_sec: 0, ..reserve };
        assert_eq!(ends(reserve), Some((20, ReserveLimit::Memory)));
        let reserve = OutageReserve { write_bytes_per_sec: 0, ..reserve };
        assert_eq!(ends(reserve), Some((30, ReserveLimit::DeviceTimeout)));
        assert_eq!(ends(OutageReserve { timeout_secs: None, ..reserve }), None);
        let full = OutageReserve { memory_free_bytes: 0, ..reserve };
        assert_eq!(ends(full), Some((0, ReserveLimit::Memory)));
    }
}
