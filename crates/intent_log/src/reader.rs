//! One ring under replay: its next frame from whichever side has it, and what lies beyond.

use forebay_device::{DeviceError, IoBuf, IoBytes};
use forebay_format::FormatError;
use forebay_format::log_frame::{
    FRAME_MAGIC, Frame, FrameHeader, LogState, RingState, decode, hint_table, next_position_bytes,
    peek, ring_frame_limit_bytes,
};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, FrameSeq, TxgId, VolumeId};

use crate::config::LogRing;
use crate::replay::{Place, SideDamage};
use crate::stream::{CHUNK_BYTES, Stream};

/// What every frame of this log has in common.
#[derive(Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) pool: u64,
    pub(crate) epoch: u32,
}

/// An intact frame beyond the end of the prefix.
pub(crate) struct Found {
    pub(crate) seq: FrameSeq,
    pub(crate) watermark: FrameSeq,
    pub(crate) max_txg: TxgId,
}

/// What a ring holds from where its frames ended.
#[derive(Default)]
pub(crate) struct Rest {
    pub(crate) frames: Vec<Found>,
    /// A header of this epoch stands where the next frame should be.
    pub(crate) torn: bool,
    /// No side could be read where the next frame should be.
    pub(crate) unreadable: bool,
    pub(crate) places: Vec<SideDamage>,
    pub(crate) volumes_hint: Vec<VolumeId>,
}

enum Miss {
    Read(DeviceError),
    Bad(FormatError),
}

impl Miss {
    fn bad(detail: impl Into<String>) -> Self {
        Miss::Bad(FormatError::new("log frame", detail))
    }
}

impl From<DeviceError> for Miss {
    fn from(error: DeviceError) -> Self {
        Miss::Read(error)
    }
}

impl From<FormatError> for Miss {
    fn from(error: FormatError) -> Self {
        Miss::Bad(error)
    }
}

pub(crate) struct RingReader {
    ring: LogRing,
    expected: Expected,
    limit_bytes: u64,
    /// Where reading began, in bytes from the ring's start.
    origin_bytes: u64,
    /// How far it has come from there; the ring's length is once round.
    gone_bytes: u64,
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
            gone_bytes: 0,
            side: 0,
            stream,
            head: None,
            exhausted: false,
        }
    }

    fn stream_of(&self, side: usize, at: u64) -> Stream {
        let side = self.ring.sides[side].clone();
        Stream::new(side, self.origin_bytes, self.ring.len_bytes, at)
    }

    /// The stream at work; an empty one stands in for it.
    fn take_stream(&mut self) -> Stream {
        let nothing = Stream::new(self.ring.sides[0].clone(), 0, 0, 0);
        std::mem::replace(&mut self.stream, nothing)
    }

    fn position_bytes(&self, gone_bytes: u64) -> u64 {
        (self.origin_bytes + gone_bytes) % self.ring.len_bytes
    }

    fn place(&self, side: usize, gone_bytes: u64) -> Place {
        let side = &self.ring.sides[side];
        Place {
            ring: self.ring.index,
            device: side.device_id,
            device_name: side.device.name().to_owned(),
            offset_bytes: side.start_bytes + self.position_bytes(gone_bytes),
        }
    }

    pub(crate) fn head_seq(&self) -> Option<FrameSeq> {
        self.head.as_ref().map(|(frame, _)| frame.header.seq)
    }

    /// Takes the head and moves on to where the next frame must be.
    pub(crate) fn take(&mut self) -> Option<(Frame, IoBytes)> {
        let head = self.head.take()?;
        let end = self.position_bytes(self.gone_bytes) + u64::from(head.0.header.len_bytes);
        let next = next_position_bytes(end, self.ring.len_bytes, self.limit_bytes);
        let waste = if next == end { 0 } else { self.ring.len_bytes - end };
        self.gone_bytes += u64::from(head.0.header.len_bytes) + waste;
        self.exhausted = self.gone_bytes >= self.ring.len_bytes;
        Some(head)
    }

    /// Whether the header is one of this log and place, and not older than `min_seq`.
    fn check(&self, header: &FrameHeader, gone_bytes: u64, min_seq: FrameSeq) -> Result<(), Miss> {
        let Expected { pool, epoch } = self.expected;
        if header.pool != pool || header.epoch != epoch {
            let (p, e) = (header.pool, header.epoch);
            return Err(Miss::bad(format!(
                "pool {pool:#x} epoch {epoch} expected, {p:#x} epoch {e} found"
            )));
        }
        let position = self.position_bytes(gone_bytes);
        if header.ring != self.ring.index || header.position_bytes != position {
            return Err(Miss::bad(format!(
                "this is a frame of ring {} offset {}, misplaced",
                header.ring, header.position_bytes
            )));
        }
        if header.seq < min_seq {
            return Err(Miss::bad(format!("old frame {}, {min_seq} expected", header.seq)));
        }
        let len = u64::from(header.len_bytes);
        if len > self.limit_bytes
            || gone_bytes + len > self.ring.len_bytes
            || position + len > self.ring.len_bytes
        {
            return Err(Miss::bad(format!("{len} bytes do not fit there")));
        }
        Ok(())
    }

    async fn read_stream(
        &self,
        stream: &mut Stream,
        gone_bytes: u64,
        min_seq: FrameSeq,
    ) -> Result<(Frame, IoBytes), Miss> {
        let header = peek(&stream.get(gone_bytes, BLOCK_LEN).await?)?;
        self.check(&header, gone_bytes, min_seq)?;
        let bytes = stream.get(gone_bytes, header.len_bytes as usize).await?;
        Ok((decode(&bytes)?, bytes))
    }

    /// One frame of one side by itself: what a large read could not give, a small one may.
    async fn read_side(
        &self,
        side: usize,
        gone_bytes: u64,
        min_seq: FrameSeq,
    ) -> Result<(Frame, IoBytes), Miss> {
        let side = &self.ring.sides[side];
        let offset = side.start_bytes + self.position_bytes(gone_bytes);
        let first = side.device.read(offset, IoBuf::recycled(BLOCK_LEN)).await?;
        let header = peek(&first)?;
        self.check(&header, gone_bytes, min_seq)?;
        let len = header.len_bytes as usize;
        let bytes = side.device.read(offset, IoBuf::recycled(len)).await?.freeze();
        Ok((decode(&bytes)?, bytes))
    }

    /// Looks for the frame at the current place on all sides, unless it is known already.
    pub(crate) async fn look(&mut self, min_seq: FrameSeq, damages: &mut Vec<SideDamage>) {
        if self.head.is_some() || self.exhausted {
            return;
        }
        let mut stream = self.take_stream();
        let gone = self.gone_bytes;
        let outcome = self.read_stream(&mut stream, gone, min_seq).await;
        self.stream = stream;
        let first_miss = match outcome {
            Ok(head) => {
                self.head = Some(head);
                return;
            }
            Err(miss) => miss,
        };
        let count = self.ring.sides.len();
        // The side itself is asked again only when its large read failed: bytes that are bad
        // once stay bad.
        let from = usize::from(!matches!(first_miss, Miss::Read(_)));
        for side in (from..count).map(|step| (self.side + step) % count) {
            let Ok(head) = self.read_side(side, gone, min_seq).await else { continue };
            damages.push(SideDamage {
                place: self.place(self.side, gone),
                reason: describe(&first_miss),
            });
            self.side = side;
            self.stream = self.stream_of(side, gone + u64::from(head.0.header.len_bytes));
            self.head = Some(head);
            return;
        }
        self.exhausted = true;
    }

    /// Finds every intact frame from `min_seq` on between here and once round, on all sides.
    pub(crate) async fn examine(&mut self, min_seq: FrameSeq) -> Rest {
        let mut rest = Rest::default();
        let from = self.gone_bytes;
        if self.head.is_none() && from < self.ring.len_bytes {
            self.describe_end(min_seq, &mut rest).await;
        }
        // What the side that was read last has in memory beyond here is not read again.
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

    /// What stands on each side where the next frame should be.
    async fn describe_end(&self, min_seq: FrameSeq, rest: &mut Rest) {
        let gone = self.gone_bytes;
        let mut read_failures = 0;
        for side in 0..self.ring.sides.len() {
            let Err(miss) = self.read_side(side, gone, min_seq).await else { continue };
            read_failures += usize::from(matches!(miss, Miss::Read(_)));
            rest.places.push(SideDamage { place: self.place(side, gone), reason: describe(&miss) });
            let at = self.ring.sides[side].start_bytes + self.position_bytes(gone);
            let device = &self.ring.sides[side].device;
            let Ok(first) = device.read(at, IoBuf::recycled(BLOCK_LEN)).await else { continue };
            let header = peek(&first);
            if header.is_ok_and(|header| self.check(&header, gone, min_seq).is_ok()) {
                rest.torn = true;
                rest.volumes_hint.extend(hint_table(&first).iter().map(|entry| entry.volume));
            }
        }
        rest.unreadable = read_failures == self.ring.sides.len();
    }

    async fn scan(
        &self,
        side: usize,
        mut stream: Stream,
        from: u64,
        min_seq: FrameSeq,
    ) -> Vec<Found> {
        let len_bytes = self.ring.len_bytes;
        let mut found = Vec::new();
        let mut gone = from;
        let mut failures_in_row = 0;
        while gone + BLOCK_BYTES <= len_bytes {
            // Nearly all blocks of a ring are no frame's first one, and their first bytes say so.
            // What cannot be read in one piece is asked for by itself below.
            if let Ok(next) = stream.seek(gone, FRAME_MAGIC.to_le_bytes()).await
                && next > gone
            {
                gone = next;
                failures_in_row = 0;
                continue;
            }
            let outcome = match self.read_stream(&mut stream, gone, min_seq).await {
                Err(Miss::Read(_)) => self.read_side(side, gone, min_seq).await,
                other => other,
            };
            match outcome {
                Ok((Frame { header, .. }, _)) => {
                    let FrameHeader { seq, watermark, max_txg, .. } = header;
                    found.push(Found { seq, watermark, max_txg });
                    gone += u64::from(header.len_bytes);
                    failures_in_row = 0;
                }
                Err(Miss::Bad(_)) => {
                    gone += BLOCK_BYTES;
                    failures_in_row = 0;
                }
                Err(Miss::Read(_)) => {
                    // A device that is gone must not be asked for each of its blocks.
                    failures_in_row += 1;
                    gone += if failures_in_row < 16 { BLOCK_BYTES } else { CHUNK_BYTES };
                }
            }
        }
        found
    }
}

fn describe(miss: &Miss) -> String {
    match miss {
        Miss::Read(error) => error.to_string(),
        Miss::Bad(error) => error.to_string(),
    }
}
