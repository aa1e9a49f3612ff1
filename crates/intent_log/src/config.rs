//! The log's configuration: its rings on devices, and its limits.

use forebay_device::Device;
use forebay_format::log_frame::{
    LogState, MAX_FRAME_BYTES, MAX_RINGS, MIN_RING_BYTES, RingState, ring_frame_limit_bytes,
};
use forebay_units::{BLOCK_BYTES, DeviceId, FrameSeq, Nanos, TxgId};

use crate::error::{ConfigError, MAX_FRAMES_IN_FLIGHT};

/// How records gather into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupCommit {
    /// The number of frames in flight, and what a frame waits for, follow from measurements.
    Adaptive,
    /// As many frames as allowed are in flight, and each gathers for the same time.
    Fixed {
        /// From when a frame could be written until it is.
        gather: Nanos,
    },
}

/// Limits of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The pool's id; frames of other pools are never replayed.
    pub pool: u64,
    /// Longest frame, in bytes: a multiple of 4096 from 8192 to 1 MiB. Rings shorter than eight
    /// such frames use an eighth of their length.
    pub max_frame_bytes: u32,
    /// Most frames in flight on each ring.
    pub frames_in_flight: usize,
    /// How records gather into frames.
    pub group_commit: GroupCommit,
    /// Share of the log's space in use at which the log asks the pool for a commit, in percent.
    pub pressure_percent: u8,
    /// Whether an append waits for [`crate::IntentLog::witnessed`] as well.
    pub waits_for_witness: bool,
}

impl LogConfig {
    /// The defaults, for pool `pool`.
    #[must_use]
    pub fn new(pool: u64) -> Self {
        Self {
            pool,
            max_frame_bytes: 128 << 10,
            frames_in_flight: 16,
            group_commit: GroupCommit::Adaptive,
            pressure_percent: 50,
            waits_for_witness: false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Self { max_frame_bytes, frames_in_flight: frames, pressure_percent: percent, .. } =
            *self;
        let frame_bytes = u64::from(max_frame_bytes);
        if frame_bytes % BLOCK_BYTES != 0
            || frame_bytes < 2 * BLOCK_BYTES
            || max_frame_bytes > MAX_FRAME_BYTES
        {
            return Err(ConfigError::FrameLimit { max_frame_bytes });
        }
        if !(1..=MAX_FRAMES_IN_FLIGHT).contains(&frames) {
            return Err(ConfigError::FramesInFlight { frames });
        }
        if !(1..=100).contains(&percent) {
            return Err(ConfigError::Pressure { percent });
        }
        Ok(())
    }
}

/// One copy of a ring.
#[derive(Clone)]
pub struct Side {
    /// The device's id in the pool.
    pub device_id: DeviceId,
    /// The device.
    pub device: Device,
    /// Where on the device the ring starts, in bytes; a multiple of 4096.
    pub start_bytes: u64,
}

/// One contiguous region that the log fills with frames from start to end, over and over. Every
/// side holds the same bytes.
#[derive(Clone)]
pub struct LogRing {
    /// Index of the ring in the pool's log, below 64.
    pub index: u8,
    /// Length in bytes: a multiple of 4096, 1 MiB at least.
    pub len_bytes: u64,
    /// The copies: one, or several for a mirror. For replay, no side means that all are missing.
    pub sides: Vec<Side>,
}

impl LogRing {
    pub(crate) fn frame_limit_bytes(&self, max_frame_bytes: u32) -> u64 {
        ring_frame_limit_bytes(max_frame_bytes, self.len_bytes)
    }

    /// Checks the ring against its devices; `whole` demands at least one side.
    pub(crate) fn check(&self, whole: bool) -> Result<(), ConfigError> {
        let Self { index: ring, len_bytes, .. } = *self;
        if usize::from(ring) >= MAX_RINGS {
            return Err(ConfigError::RingIndex { ring });
        }
        let is_aligned = len_bytes % BLOCK_BYTES == 0;
        if len_bytes < MIN_RING_BYTES || !is_aligned || len_bytes >> 44 != 0 {
            return Err(ConfigError::RingLength { ring, len_bytes });
        }
        if whole && self.sides.is_empty() {
            return Err(ConfigError::NoSide { ring });
        }
        for side in &self.sides {
            let (start_bytes, size_bytes) = (side.start_bytes, side.device.geometry().size_bytes);
            let end_bytes = start_bytes.checked_add(len_bytes);
            if start_bytes % BLOCK_BYTES != 0 || end_bytes.is_none_or(|end| end > size_bytes) {
                let device_name = side.device.name().to_owned();
                return Err(ConfigError::SideRange {
                    ring,
                    device_name,
                    start_bytes,
                    len_bytes,
                    size_bytes,
                });
            }
        }
        Ok(())
    }
}

/// Checks every ring; `whole` demands at least one side of each.
pub(crate) fn check_rings(rings: &[LogRing], whole: bool) -> Result<(), ConfigError> {
    for (i, ring) in rings.iter().enumerate() {
        ring.check(whole)?;
        if rings[..i].iter().any(|other| other.index == ring.index) {
            return Err(ConfigError::DuplicateRing { ring: ring.index });
        }
    }
    Ok(())
}

/// The state of an empty log on `rings`, which the superblock holds before the first frame.
pub(crate) fn empty_state(
    config: &LogConfig,
    rings: &[LogRing],
    epoch: u32,
    committed: TxgId,
    next_seq: FrameSeq,
) -> LogState {
    let ring =
        |ring: &LogRing| RingState { index: ring.index, len_bytes: ring.len_bytes, tail_bytes: 0 };
    LogState {
        epoch,
        committed,
        tail_seq: next_seq,
        next_seq,
        watermark: FrameSeq(next_seq.0 - 1),
        max_frame_bytes: config.max_frame_bytes,
        rings: rings.iter().map(ring).collect(),
    }
}
