//! Where the log lies, and its limits.

use forebay_device::Device;
use forebay_format::log_frame::{
    LogState, MAX_FRAME_BYTES, MAX_RINGS, MIN_RING_BYTES, RingState, ring_frame_limit_bytes,
};
use forebay_units::{BLOCK_BYTES, DeviceId, FrameSeq, TxgId};

use crate::LogError;

/// Limits of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The pool's id; frames of other pools are never replayed.
    pub pool: u64,
    /// No frame is longer, in bytes: a multiple of 4096 from 8192 to 1 MiB. Rings shorter than
    /// eight such frames use an eighth of their length.
    pub max_frame_bytes: u32,
    /// Frames that may be in flight on each ring.
    pub frames_in_flight: usize,
    /// Share of the log's space in use at which the pool is asked for a commit, in percent.
    pub pressure_percent: u8,
}

impl LogConfig {
    /// The defaults, for pool `pool`.
    #[must_use]
    pub fn new(pool: u64) -> Self {
        Self { pool, max_frame_bytes: 128 << 10, frames_in_flight: 4, pressure_percent: 50 }
    }

    pub(crate) fn check(&self) -> Result<(), LogError> {
        let refuse = |detail: String| Err(LogError::BadConfig { detail });
        let frame = u64::from(self.max_frame_bytes);
        if !frame.is_multiple_of(BLOCK_BYTES)
            || frame < 2 * BLOCK_BYTES
            || self.max_frame_bytes > MAX_FRAME_BYTES
        {
            return refuse(format!(
                "frames of {frame} bytes: give a multiple of 4096 from 8192 to {MAX_FRAME_BYTES}"
            ));
        }
        if self.frames_in_flight == 0 || self.frames_in_flight > 1024 {
            return refuse(format!("{} frames in flight: give 1 to 1024", self.frames_in_flight));
        }
        if self.pressure_percent == 0 || self.pressure_percent > 100 {
            return refuse(format!("pressure at {} %: give 1 to 100", self.pressure_percent));
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

/// One contiguous region that frames go round, the same bytes on each side.
#[derive(Clone)]
pub struct LogRing {
    /// Index of the ring in the pool's log, below 64.
    pub index: u8,
    /// Length in bytes: a multiple of 4096, 1 MiB at least.
    pub len_bytes: u64,
    /// The copies: one, or several for a mirror. Replay takes none as "all are missing".
    pub sides: Vec<Side>,
}

impl LogRing {
    pub(crate) fn frame_limit_bytes(&self, max_frame_bytes: u32) -> u64 {
        ring_frame_limit_bytes(max_frame_bytes, self.len_bytes)
    }

    /// Checks the ring against its devices; `whole` demands at least one side.
    pub(crate) fn check(&self, whole: bool) -> Result<(), LogError> {
        let refuse = |detail: String| {
            Err(LogError::BadConfig { detail: format!("ring {}: {detail}", self.index) })
        };
        let len = self.len_bytes;
        if usize::from(self.index) >= MAX_RINGS {
            return refuse(format!("a log has at most {MAX_RINGS} rings"));
        }
        if len < MIN_RING_BYTES || !len.is_multiple_of(BLOCK_BYTES) || len >> 44 != 0 {
            return refuse(format!(
                "{len} bytes: give a multiple of 4096, at least {MIN_RING_BYTES}, below 16 TiB"
            ));
        }
        if whole && self.sides.is_empty() {
            return refuse("no device is left: leave the ring out".to_owned());
        }
        for side in &self.sides {
            let geometry = side.device.geometry();
            let end = side.start_bytes.checked_add(len);
            if !side.start_bytes.is_multiple_of(BLOCK_BYTES)
                || end.is_none_or(|end| end > geometry.size_bytes)
            {
                return refuse(format!(
                    "{} bytes from {} on do not fit on {} ({} bytes, in units of 4096)",
                    len,
                    side.start_bytes,
                    side.device.name(),
                    geometry.size_bytes
                ));
            }
        }
        Ok(())
    }
}

pub(crate) fn check_rings(rings: &[LogRing], whole: bool) -> Result<(), LogError> {
    for (i, ring) in rings.iter().enumerate() {
        ring.check(whole)?;
        if rings[..i].iter().any(|other| other.index == ring.index) {
            let detail = format!("ring {} is given twice", ring.index);
            return Err(LogError::BadConfig { detail });
        }
    }
    Ok(())
}

/// The state of an empty log on `rings`: what the superblock says before the first frame.
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
