//! Replay: the records of the log after a crash, and the verdict on its end.
//!
//! A frame that is bad on every side ends the prefix. It is either the torn end of the log or a
//! hole in it. Every later frame, and the superblock, hold a watermark: every frame up to it was
//! durable. A hole at or below the watermark is a loss; replay reports it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use forebay_device::IoBytes;
use forebay_format::log_frame::{Fragment, Frame, FrameHeader, LogState, RecordEntry};
use forebay_units::{FrameSeq, TxgId, VolumeId};

use crate::config::{LogRing, check_rings};
use crate::damage::SideDamage;
use crate::error::{LogError, SplitError};
use crate::reader::{Expected, Found, RingReader};
use crate::record::Record;

/// Frames that were durable and are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// First and last sequence number of each run of missing frames. The first run begins where
    /// replay stopped.
    pub missing: Vec<(FrameSeq, FrameSeq)>,
    /// Every frame up to this one was durable.
    pub watermark: FrameSeq,
    /// Intact frames after the hole. They are not replayed.
    pub frames_after: u64,
    /// Where the first missing frame should be, and what is there instead: one entry for each side
    /// of each ring that may hold it.
    pub damages: Vec<SideDamage>,
    /// Rings without a present device.
    pub absent_rings: Vec<u8>,
    /// Highest transaction group before the hole.
    pub txg_before: TxgId,
    /// Lowest of the newest groups of the frames after the hole, when there are such frames.
    pub txg_after: Option<TxgId>,
    /// Volumes that the remains of the first missing frame name. Only a hint, because its checksum
    /// is wrong.
    pub volumes_hint: Vec<VolumeId>,
}

/// How the log ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayVerdict {
    /// No frame of this epoch follows the last one.
    CleanEnd,
    /// Frame `seq` was in flight when the log stopped; it was never acknowledged.
    TornTail {
        /// The frame.
        seq: FrameSeq,
    },
    /// Frame `seq` was written when group `committed` was under a root, so there was a newer root
    /// than the one whose state was given. Replay returned what was written before that root.
    NewerRoot {
        /// The frame.
        seq: FrameSeq,
        /// The group.
        committed: TxgId,
    },
    /// Acknowledged writes are missing. Replay returned the prefix before the hole.
    Loss(Box<Loss>),
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayEnd {
    /// Frames taken.
    pub frames: u64,
    /// Records returned.
    pub records: u64,
    /// Bytes of the frames taken.
    pub bytes: u64,
    /// The last frame taken; the one before the first when there was none.
    pub last_seq: FrameSeq,
    /// How the log ended.
    pub verdict: ReplayVerdict,
    /// Locations that were bad on one side and good on another.
    pub damages: Vec<SideDamage>,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the log has lost acknowledged writes: ")?;
        for (i, (first, last)) in self.missing.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}frames {first} to {last}")?;
        }
        if !self.absent_rings.is_empty() {
            write!(f, "; no device of ring {:?} is present", self.absent_rings)?;
        }
        write!(f, " (durable once up to frame {}", self.watermark)?;
        write!(f, "; {} intact frames come after the hole)", self.frames_after)?;
        for SideDamage { location, fault } in &self.damages {
            write!(f, "; {} at offset {}: {fault}", location.device_name, location.offset_bytes)?;
        }
        write!(f, "; groups after {}", self.txg_before)?;
        if let Some(txg) = self.txg_after {
            write!(f, ", up to {txg} at least")?;
        }
        if !self.volumes_hint.is_empty() {
            let volumes: Vec<u32> = self.volumes_hint.iter().map(|v| v.0).collect();
            write!(f, "; volumes that its remains name: {volumes:?}")?;
        }
        Ok(())
    }
}

/// A log under replay.
pub struct Replay {
    state: LogState,
    readers: Vec<RingReader>,
    absent_rings: Vec<u8>,
    expected: FrameSeq,
    watermark: FrameSeq,
    last_txg: TxgId,
    /// The parts so far of a write that is split over several frames.
    partial: Option<Record>,
    frames: u64,
    records: u64,
    bytes: u64,
    damages: Vec<SideDamage>,
    end: Option<ReplayEnd>,
}

impl Replay {
    /// Prepares to read `rings` from where the superblock's `state` begins. A ring may have fewer
    /// sides than before. When a ring has no side, the verdict is a [`ReplayVerdict::Loss`]. Fails
    /// when rings and state do not fit each other.
    pub fn open(rings: Vec<LogRing>, state: &LogState, pool: u64) -> Result<Self, LogError> {
        state.check()?;
        check_rings(&rings, false)?;
        let mut readers = Vec::new();
        let mut absent_rings = Vec::new();
        for ring_state in &state.rings {
            let ring = rings.iter().find(|ring| ring.index == ring_state.index);
            match ring {
                Some(ring) if ring.len_bytes != ring_state.len_bytes => {
                    return Err(LogError::RingLength {
                        ring: ring.index,
                        expected_bytes: ring_state.len_bytes,
                        found_bytes: ring.len_bytes,
                    });
                }
                Some(ring) if !ring.sides.is_empty() => {
                    let expected = Expected { pool, epoch: state.epoch };
                    let reader = RingReader::new(ring.clone(), ring_state, state, expected);
                    readers.push(reader);
                }
                _ => absent_rings.push(ring_state.index),
            }
        }
        let last_txg = state.committed;
        Ok(Self {
            readers,
            absent_rings,
            expected: state.tail_seq,
            watermark: state.watermark,
            last_txg,
            partial: None,
            frames: 0,
            records: 0,
            bytes: 0,
            damages: Vec::new(),
            end: None,
            state: state.clone(),
        })
    }

    /// Returns the records of the next frame that has any, in the order of their appends, without
    /// those of groups that the superblock has committed. `None` at the end: see [`Replay::end`].
    ///
    /// Records come out before the verdict is known. A caller that may refuse a loss applies them
    /// only to memory until it has the verdict.
    pub async fn next(&mut self) -> Result<Option<Vec<Record>>, LogError> {
        while self.end.is_none() {
            let mut taken = None;
            for reader in &mut self.readers {
                reader.load_head(self.expected, &mut self.damages).await;
                if reader.head_seq() == Some(self.expected) {
                    taken = reader.take();
                    break;
                }
            }
            let Some((frame, bytes)) = taken else {
                self.end_replay().await;
                break;
            };
            if frame.header.committed > self.state.committed {
                let FrameHeader { seq, committed, .. } = frame.header;
                self.finish(ReplayVerdict::NewerRoot { seq, committed });
                break;
            }
            self.expected = frame.header.seq.next();
            self.watermark = self.watermark.max(frame.header.watermark);
            self.last_txg = self.last_txg.max(frame.header.max_txg);
            self.frames += 1;
            self.bytes += u64::from(frame.header.len_bytes);
            let records = self.unpack(&frame, &bytes)?;
            if !records.is_empty() {
                self.records += records.len() as u64;
                return Ok(Some(records));
            }
        }
        Ok(None)
    }

    /// The result, once [`Replay::next`] has returned `None`.
    #[must_use]
    pub fn end(&self) -> Option<&ReplayEnd> {
        self.end.as_ref()
    }

    fn unpack(&mut self, frame: &Frame, bytes: &IoBytes) -> Result<Vec<Record>, LogError> {
        let mut records = Vec::with_capacity(frame.entries.len());
        let mut at = frame.data_start;
        for entry in &frame.entries {
            let len = entry.data_bytes() as usize;
            let data = if len > 0 { vec![bytes.slice(at, len)] } else { Vec::new() };
            at += len;
            if entry.txg > self.state.committed {
                let whole = self.join(frame.header.seq, entry, data)?;
                records.extend(whole);
            }
        }
        Ok(records)
    }

    /// Adds one entry to the write that it is a part of. Returns the write when it is whole.
    fn join(
        &mut self,
        seq: FrameSeq,
        entry: &RecordEntry,
        mut data: Vec<IoBytes>,
    ) -> Result<Option<Record>, LogError> {
        let (volume, lba) = (entry.volume, entry.lba);
        let refuse = |error| Err(LogError::Inconsistent { seq, volume, lba, error });
        let joined = match (self.partial.take(), entry.fragment) {
            (None, Fragment::Last) => return refuse(SplitError::NoBeginning),
            (Some(_), Fragment::Whole) => return refuse(SplitError::NoEnd),
            (None, _) => Record {
                volume: entry.volume,
                txg: entry.txg,
                kind: entry.kind,
                lba: entry.lba,
                blocks: entry.blocks,
                data,
            },
            (Some(mut record), _) => {
                let follows = record.volume == entry.volume
                    && record.txg == entry.txg
                    && record.kind == entry.kind
                    && record.lba.0 + u64::from(record.blocks) == entry.lba.0;
                let blocks = record.blocks.checked_add(entry.blocks);
                let (true, Some(blocks)) = (follows, blocks) else {
                    return refuse(SplitError::Gap);
                };
                record.blocks = blocks;
                record.data.append(&mut data);
                record
            }
        };
        if entry.fragment == Fragment::Continues {
            self.partial = Some(joined);
            return Ok(None);
        }
        Ok(Some(joined))
    }

    /// No ring has the next frame: decides between a clean end, a torn tail and a loss.
    async fn end_replay(&mut self) {
        let expected = self.expected;
        let mut found: BTreeMap<FrameSeq, Found> = BTreeMap::new();
        let mut damages = Vec::new();
        let mut volumes_hint = BTreeSet::new();
        let mut torn = false;
        let mut unreadable = false;
        for reader in &mut self.readers {
            let rest = reader.examine(expected).await;
            torn |= rest.torn;
            unreadable |= rest.unreadable;
            damages.extend(rest.damages);
            volumes_hint.extend(rest.volumes_hint);
            for frame in rest.frames {
                self.watermark = self.watermark.max(frame.watermark);
                found.insert(frame.seq, frame);
            }
        }
        torn |= !found.is_empty();
        let newer = found.values().find(|frame| frame.committed > self.state.committed);
        let verdict = if let Some(Found { seq, committed, .. }) = newer {
            ReplayVerdict::NewerRoot { seq: *seq, committed: *committed }
        } else if self.watermark >= expected || unreadable || !self.absent_rings.is_empty() {
            ReplayVerdict::Loss(Box::new(Loss {
                missing: missing_runs(expected, self.watermark, &found),
                watermark: self.watermark,
                frames_after: found.len() as u64,
                damages,
                absent_rings: self.absent_rings.clone(),
                txg_before: self.last_txg,
                txg_after: found.values().map(|frame| frame.max_txg).min(),
                volumes_hint: volumes_hint.into_iter().collect(),
            }))
        } else if torn {
            ReplayVerdict::TornTail { seq: expected }
        } else {
            ReplayVerdict::CleanEnd
        };
        self.finish(verdict);
    }

    fn finish(&mut self, verdict: ReplayVerdict) {
        self.end = Some(ReplayEnd {
            frames: self.frames,
            records: self.records,
            bytes: self.bytes,
            last_seq: FrameSeq(self.expected.0 - 1),
            verdict,
            damages: std::mem::take(&mut self.damages),
        });
    }
}

/// The runs of sequence numbers from `first` to `last` that `found` lacks. Empty when `last` is
/// lower than `first`: then it is unknown whether any frame is missing.
fn missing_runs(
    first: FrameSeq,
    last: FrameSeq,
    found: &BTreeMap<FrameSeq, Found>,
) -> Vec<(FrameSeq, FrameSeq)> {
    let mut runs = Vec::new();
    let mut from = first;
    for seq in found.keys().filter(|seq| **seq <= last) {
        if *seq > from {
            runs.push((from, FrameSeq(seq.0 - 1)));
        }
        from = seq.next();
    }
    if from <= last {
        runs.push((from, last));
    }
    runs
}
