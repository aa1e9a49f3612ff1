//! Replay of one ring: its next frame, from any side that has it, and the frames beyond the end.
//!
//! Positions (`at_bytes`) count from where reading began, so that they never wrap.

use std::rc::Rc;

use forebay_device::{Device, DeviceError, IoBuf, IoBytes};
use forebay_format::log_frame::{
    FRAME_MAGIC, Frame, FrameHeader, LogState, RingState, decode, hint_table, next_position_bytes,
    peek, ring_frame_limit_bytes,
};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, FrameSeq, TxgId, VolumeId};

use crate::config::LogRing;
use crate::damage::{FrameFault, SideDamage, SideLocation};
use crate::stream::{CHUNK_BYTES, Stream};

/// Failed reads in a row after which a scan skips whole chunks: a device that is gone would fail
/// each of its blocks.
const MAX_BLOCK_READ_FAILURES: u32 = 16;

/// The pool and the epoch of every frame of this log.
#[derive(Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) pool: u64,
    pub(crate) epoch: u32,
}

/// The header of the intact frame at `offset_bytes`; `None` when there is none.
pub(crate) async fn frame_at(
    device: &Device,
    offset_bytes: u64,
) -> Result<Option<FrameHeader>, DeviceError> {
    let first = device.read(offset_bytes, IoBuf::recycled(BLOCK_LEN)).await?;
    let Ok(header) = peek(&first) else { return Ok(None) };
    let bytes = device.read(offset_bytes, IoBuf::recycled(header.len_bytes as usize)).await?;
    Ok(decode(&bytes).ok().map(|frame| frame.header))
}

/// The highest epoch of the frames at the start of `rings`, and the name of the device that has it;
/// `None` when no intact frame of `pool` is there. Every epoch begins at the start of its rings,
/// and its frames are written after the root that names it.
pub async fn newest_epoch(rings: &[LogRing], pool: u64) -> Option<(u32, Rc<str>)> {
    let sides = rings.iter().flat_map(|ring| ring.sides.iter().map(move |side| (ring, side)));
    let epochs = sides.map(|(ring, side)| async move {
        let header = frame_at(&side.device, side.start_bytes).await.ok()??;
        let FrameHeader { pool: found, epoch, ring: index, position_bytes, .. } = header;
        let is_here = found == pool && index == ring.index && position_bytes == 0;
        is_here.then(|| (epoch, side.device.name().into()))
    });
    let epochs = forebay_rt::join_all(epochs).await;
    epochs.into_iter().flatten().max_by_key(|(epoch, _)| *epoch)
}

/// An intact frame beyond the end of the prefix.
pub(crate) struct Found {
    pub(crate) seq: FrameSeq,
    pub(crate) watermark: FrameSeq,
    pub(crate) max_txg: TxgId,
    pub(crate) committed: TxgId,
}

/// The content of a ring from the end of its prefix on.
#[derive(Default)]
pub(crate) struct Rest {
    pub(crate) frames: Vec<Found>,
    /// A header of this epoch is where the next frame should be.
    pub(crate) torn: bool,
    /// No side could be read where the next frame should be.
    pub(crate) unreadable: bool,
    /// What each side has where the next frame should be.
    pub(crate) damages: Vec<SideDamage>,
    pub(crate) volumes_hint: Vec<VolumeId>,
}

/// Reads the frames of one ring in order.
pub(crate) struct RingReader {
    ring: LogRing,
    expected: Expected,
    limit_bytes: u64,
    /// Where reading began, in bytes from the ring's start.
    origin_bytes: u64,
    /// Position of the next frame; at the ring's length the reader is once round.
    at_bytes: u64,
    /// The side that `stream` reads.
    side: usize,
    stream: Stream,
    head: Option<(Frame, IoBytes)>,
    exhausted: bool,
}

impl RingReader {
    pub(crate) fn new(
        ring: LogRing,
        ring_state: &RingState,
        state: &LogState,
        expected: Expected,
    ) -> Self {
        let len_bytes = ring.len_bytes;
        let limit_bytes = ring_frame_limit_bytes(state.max_frame_bytes, len_bytes);
        let origin_bytes = next_position_bytes(ring_state.tail_bytes, len_bytes, limit_bytes);
        let stream = Stream::new(ring.sides[0].clone(), origin_bytes, len_bytes, 0);
        Self {
            ring,
            expected,
            limit_bytes,
            origin_bytes,
            at_bytes: 0,
            side: 0,
            stream,
            head: None,
            exhausted: false,
        }
    }

    fn stream_of(&self, side: usize, at_bytes: u64) -> Stream {
        let side = self.ring.sides[side].clone();
        Stream::new(side, self.origin_bytes, self.ring.len_bytes, at_bytes)
    }

    /// Takes the stream in use and leaves an empty one.
    fn take_stream(&mut self) -> Stream {
        let nothing = Stream::new(self.ring.sides[0].clone(), 0, 0, 0);
        std::mem::replace(&mut self.stream, nothing)
    }

    fn position_bytes(&self, at_bytes: u64) -> u64 {
        (self.origin_bytes + at_bytes) % self.ring.len_bytes
    }

    fn location(&self, side: usize, at_bytes: u64) -> SideLocation {
        let side = &self.ring.sides[side];
        SideLocation {
            ring: self.ring.index,
            device: side.device_id,
            device_name: side.device.name().to_owned(),
            offset_bytes: side.start_bytes + self.position_bytes(at_bytes),
        }
    }

    pub(crate) fn head_seq(&self) -> Option<FrameSeq> {
        self.head.as_ref().map(|(frame, _)| frame.header.seq)
    }

    /// Takes the head and moves to the position of the next frame.
    pub(crate) fn take(&mut self) -> Option<(Frame, IoBytes)> {
        let head = self.head.take()?;
        let end = self.position_bytes(self.at_bytes) + u64::from(head.0.header.len_bytes);
        let next = next_position_bytes(end, self.ring.len_bytes, self.limit_bytes);
        let waste = if next == end { 0 } else { self.ring.len_bytes - end };
        self.at_bytes += u64::from(head.0.header.len_bytes) + waste;
        self.exhausted = self.at_bytes >= self.ring.len_bytes;
        Some(head)
    }

    /// Whether the header belongs to this log and this position, and is not older than `min_seq`.
    fn check(
        &self,
        header: &FrameHeader,
        at_bytes: u64,
        min_seq: FrameSeq,
    ) -> Result<(), FrameFault> {
        let Expected { pool, epoch } = self.expected;
        if header.pool != pool || header.epoch != epoch {
            return Err(FrameFault::OtherLog {
                expected_pool: pool,
                expected_epoch: epoch,
                found_pool: header.pool,
                found_epoch: header.epoch,
            });
        }
        let position = self.position_bytes(at_bytes);
        if header.ring != self.ring.index || header.position_bytes != position {
            return Err(FrameFault::Misplaced {
                found_ring: header.ring,
                found_position_bytes: header.position_bytes,
            });
        }
        if header.seq < min_seq {
            return Err(FrameFault::Stale { expected: min_seq, found: header.seq });
        }
        let len_bytes = u64::from(header.len_bytes);
        if len_bytes > self.limit_bytes
            || at_bytes + len_bytes > self.ring.len_bytes
            || position + len_bytes > self.ring.len_bytes
        {
            return Err(FrameFault::TooLong { len_bytes });
        }
        Ok(())
    }

    async fn read_stream(
        &self,
        stream: &mut Stream,
        at_bytes: u64,
        min_seq: FrameSeq,
    ) -> Result<(Frame, IoBytes), FrameFault> {
        let header = peek(&stream.get(at_bytes, BLOCK_LEN).await?)?;
        self.check(&header, at_bytes, min_seq)?;
        let bytes = stream.get(at_bytes, header.len_bytes as usize).await?;
        Ok((decode(&bytes)?, bytes))
    }

    /// Reads one frame of one side by itself: it may be readable where a large read failed.
    async fn read_side(
        &self,
        side: usize,
        at_bytes: u64,
        min_seq: FrameSeq,
    ) -> Result<(Frame, IoBytes), FrameFault> {
        let side = &self.ring.sides[side];
        let offset = side.start_bytes + self.position_bytes(at_bytes);
        let first = side.device.read(offset, IoBuf::recycled(BLOCK_LEN)).await?;
        let header = peek(&first)?;
        self.check(&header, at_bytes, min_seq)?;
        let len = header.len_bytes as usize;
        let bytes = side.device.read(offset, IoBuf::recycled(len)).await?.freeze();
        Ok((decode(&bytes)?, bytes))
    }

    /// Reads the frame at the current position from any side, unless it is read already.
    pub(crate) async fn load_head(&mut self, min_seq: FrameSeq, damages: &mut Vec<SideDamage>) {
        if self.head.is_some() || self.exhausted {
            return;
        }
        let mut stream = self.take_stream();
        let at_bytes = self.at_bytes;
        let outcome = self.read_stream(&mut stream, at_bytes, min_seq).await;
        self.stream = stream;
        let first_fault = match outcome {
            Ok(head) => {
                self.head = Some(head);
                return;
            }
            Err(fault) => fault,
        };
        let count = self.ring.sides.len();
        // Read this side again only when its large read failed: bad bytes stay bad.
        let from = usize::from(!matches!(first_fault, FrameFault::Read(_)));
        for side in (from..count).map(|step| (self.side + step) % count) {
            let Ok(head) = self.read_side(side, at_bytes, min_seq).await else { continue };
            let location = self.location(self.side, at_bytes);
            damages.push(SideDamage { location, fault: first_fault });
            self.side = side;
            self.stream = self.stream_of(side, at_bytes + u64::from(head.0.header.len_bytes));
            self.head = Some(head);
            return;
        }
        self.exhausted = true;
    }

    /// Finds every intact frame from `min_seq` on in the rest of the ring, on all sides.
    pub(crate) async fn examine(&mut self, min_seq: FrameSeq) -> Rest {
        let mut rest = Rest::default();
        let from = self.at_bytes;
        if self.head.is_none() && from < self.ring.len_bytes {
            self.describe_end(min_seq, &mut rest).await;
        }
        // The stream in use has read ahead: its chunks are not read again.
        let mut at_hand = Some(self.take_stream());
        let this = &*self;
        let sides = (0..this.ring.sides.len()).map(|side| {
            let at_hand = if side == this.side { at_hand.take() } else { None };
            let stream = at_hand.unwrap_or_else(|| this.stream_of(side, from));
            this.scan(side, stream, from, min_seq)
        });
        rest.frames = forebay_rt::join_all(sides).await.into_iter().flatten().collect();
        rest
    }

    /// Describes what each side has where the next frame should be.
    async fn describe_end(&self, min_seq: FrameSeq, rest: &mut Rest) {
        let at_bytes = self.at_bytes;
        let mut read_failures = 0;
        for side in 0..self.ring.sides.len() {
            let Err(fault) = self.read_side(side, at_bytes, min_seq).await else { continue };
            read_failures += usize::from(matches!(fault, FrameFault::Read(_)));
            let location = self.location(side, at_bytes);
            let (device, offset) = (&self.ring.sides[side].device, location.offset_bytes);
            rest.damages.push(SideDamage { location, fault });
            let Ok(first) = device.read(offset, IoBuf::recycled(BLOCK_LEN)).await else {
                continue;
            };
            let header = peek(&first);
            if header.is_ok_and(|header| self.check(&header, at_bytes, min_seq).is_ok()) {
                rest.torn = true;
                rest.volumes_hint.extend(hint_table(&first).iter().map(|entry| entry.volume));
            }
        }
        rest.unreadable = read_failures == self.ring.sides.len();
    }

    /// Finds the intact frames of one side from position `from` on.
    async fn scan(
        &self,
        side: usize,
        mut stream: Stream,
        from: u64,
        min_seq: FrameSeq,
    ) -> Vec<Found> {
        let len_bytes = self.ring.len_bytes;
        let mut found = Vec::new();
        let mut at = from;
        let mut failures_in_row = 0;
        while at + BLOCK_BYTES <= len_bytes {
            // Nearly no block begins a frame, so the magic number skips most of the ring. A chunk
            // that cannot be read is read block by block below.
            if let Ok(next) = stream.seek(at, FRAME_MAGIC.to_le_bytes()).await {
                if next > at {
                    at = next;
                    failures_in_row = 0;
                    continue;
                }
            }
            let outcome = match self.read_stream(&mut stream, at, min_seq).await {
                Err(FrameFault::Read(_)) => self.read_side(side, at, min_seq).await,
                other => other,
            };
            match outcome {
                Ok((Frame { header, .. }, _)) => {
                    let FrameHeader { seq, watermark, max_txg, committed, .. } = header;
                    found.push(Found { seq, watermark, max_txg, committed });
                    at += u64::from(header.len_bytes);
                    failures_in_row = 0;
                }
                Err(FrameFault::Read(_)) => {
                    failures_in_row += 1;
                    let skips_chunks = failures_in_row >= MAX_BLOCK_READ_FAILURES;
                    at += if skips_chunks { CHUNK_BYTES } else { BLOCK_BYTES };
                }
                Err(_) => {
                    at += BLOCK_BYTES;
                    failures_in_row = 0;
                }
            }
        }
        found
    }
}
