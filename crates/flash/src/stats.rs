//! Counters of a device, in a form that experiments can check.

use forebay_units::Nanos;

use crate::ftl::WearSpread;

/// What a device did from the start of its life to some instant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// The instant.
    pub now: Nanos,
    /// Requests of each kind submitted.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Trim requests.
    pub trims: u64,
    /// Bytes the host asked to read.
    pub read_bytes: u64,
    /// Bytes the host wrote.
    pub written_bytes: u64,
    /// Bytes programmed to the medium, for whatever reason.
    pub media_written_bytes: u64,
    /// Sum of response times of all requests.
    pub response_sum_ns: u128,
    /// The longest response.
    pub response_max_ns: u64,
    /// Requests outstanding, integrated over time up to `now`.
    pub outstanding_ns: u128,
    /// Requests outstanding at `now`.
    pub outstanding: u64,
    /// Time the link carried something.
    pub link_busy_ns: u128,
    /// Link transfers repeated because of bit errors.
    pub link_retries: u64,
    /// Parallel servers of the medium (dies, heads) that the next three are summed over.
    pub servers: u32,
    /// Time spent reading the medium.
    pub media_read_ns: u128,
    /// Time spent programming or writing it.
    pub media_write_ns: u128,
    /// Time spent erasing it.
    pub media_erase_ns: u128,
    /// Units written that covered a mapping unit only in part and had to read the rest.
    pub read_modify_writes: u64,
    /// Erase counts, for flash.
    pub wear: WearSpread,
    /// Energy drawn, in joules.
    pub energy_j: f64,
}

impl Stats {
    /// Bytes programmed per byte the host wrote; 1 before any write.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        if self.written_bytes == 0 {
            return 1.0;
        }
        self.media_written_bytes as f64 / self.written_bytes as f64
    }

    /// All requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.trims
    }

    /// Share of the medium's servers busy, over the life of the device.
    #[must_use]
    pub fn media_utilization(&self) -> f64 {
        let busy = self.media_read_ns + self.media_write_ns + self.media_erase_ns;
        busy as f64 / (self.now.0.max(1) as f64 * f64::from(self.servers.max(1)))
    }

    /// What happened between `earlier` and `self`, for sums; maxima and wear stay as they are.
    #[must_use]
    pub fn since(&self, earlier: &Stats) -> Stats {
        Stats {
            now: Nanos(self.now.0 - earlier.now.0),
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            flushes: self.flushes - earlier.flushes,
            trims: self.trims - earlier.trims,
            read_bytes: self.read_bytes - earlier.read_bytes,
            written_bytes: self.written_bytes - earlier.written_bytes,
            media_written_bytes: self.media_written_bytes - earlier.media_written_bytes,
            response_sum_ns: self.response_sum_ns - earlier.response_sum_ns,
            outstanding_ns: self.outstanding_ns - earlier.outstanding_ns,
            link_busy_ns: self.link_busy_ns - earlier.link_busy_ns,
            link_retries: self.link_retries - earlier.link_retries,
            media_read_ns: self.media_read_ns - earlier.media_read_ns,
            media_write_ns: self.media_write_ns - earlier.media_write_ns,
            media_erase_ns: self.media_erase_ns - earlier.media_erase_ns,
            read_modify_writes: self.read_modify_writes - earlier.read_modify_writes,
            energy_j: self.energy_j - earlier.energy_j,
            ..*self
        }
    }

    /// Mean requests outstanding, integrated over time.
    #[must_use]
    pub fn mean_outstanding(&self) -> f64 {
        self.outstanding_ns as f64 / self.now.0.max(1) as f64
    }
}
