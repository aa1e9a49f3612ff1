//! Reading the log after a crash: what it holds, and whether that is all it should hold.
//!
//! A frame that is bad on every side ends the prefix. Whether that is the torn end of the log or
//! a hole in it is decided by evidence: every later frame, and the superblock, say how far the
//! log was known to be durable. A hole below that mark is loss, and is reported as such.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use forebay_device::IoBytes;
use forebay_format::log_frame::{Frame, LogState, Piece, RecordEntry};
use forebay_units::{DeviceId, FrameSeq, TxgId, VolumeId};

use crate::LogError;
use crate::config::{LogRing, check_rings};
use crate::log::Record;
use crate::reader::{Expected, Found, RingReader};

/// A place on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the ring.
    pub ring: u8,
    /// The device's id in the pool.
    pub device: DeviceId,
    /// The device's name.
    pub device_name: String,
    /// Where on the device, in bytes.
    pub offset_bytes: u64,
}

/// A bad place whose frame another side still had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideDamage {
    /// Where.
    pub place: Place,
    /// What was expected and found.
    pub reason: String,
}

/// Frames that were durable once and are not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// First and last number of each run of missing frames. The first run begins where replay
    /// stopped.
    pub missing: Vec<(FrameSeq, FrameSeq)>,
    /// Every frame up to this one was durable once.
    pub watermark: FrameSeq,
    /// Intact frames that were found after the hole, and are not replayed.
    pub frames_after: u64,
    /// Where the first missing frame should be (one place for each side of each ring that may
    /// hold it), and what is there instead.
    pub places: Vec<SideDamage>,
    /// Rings of which no device was given.
    pub absent_rings: Vec<u8>,
    /// Highest transaction group before the hole.
    pub txg_before: TxgId,
    /// Lowest highest-group of the frames after the hole, when there are any.
    pub txg_after: Option<TxgId>,
    /// Volumes that the remains of the first missing frame name. A hint: its checksum is wrong.
    pub volumes_hint: Vec<VolumeId>,
}

/// How the log ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// After its last frame there is nothing of this epoch.
    CleanEnd,
    /// Frame `seq` was under way when the log stopped; nobody was told that it was durable.
    TornTail {
        /// The frame.
        seq: FrameSeq,
    },
    /// Acknowledged writes are missing. What was replayed is the prefix before the hole.
    Loss(Box<Loss>),
}

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayEnd {
    /// Frames taken.
    pub frames: u64,
    /// Records given out.
    pub records: u64,
    /// Bytes of the frames taken.
    pub bytes: u64,
    /// The last frame taken; the one before the first when there was none.
    pub last_seq: FrameSeq,
    /// How the log ended.
    pub verdict: Verdict,
    /// Places that were bad on one side and good on another.
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
        for SideDamage { place, reason } in &self.places {
            write!(f, "; {} at offset {}: {reason}", place.device_name, place.offset_bytes)?;
        }
        write!(f, "; groups after {}", self.txg_before)?;
        if let Some(txg) = self.txg_after {
            write!(f, ", up to {txg} at least")?;
        }
        if !self.volumes_hint.is_empty() {
            let volumes: Vec<u32> = self.volumes_hint.iter().map(|v| v.0).collect();
            write!(f, "; volumes that its remains name: {volumes:?}")?;
        }
        write!(f, "; bring the missing devices back, or accept the loss")
    }
}

/// A log being read.
pub struct Replay {
    state: LogState,
    readers: Vec<RingReader>,
    absent_rings: Vec<u8>,
    expected: FrameSeq,
    watermark: FrameSeq,
    last_txg: TxgId,
    partial: Option<Record>,
    goes_back: bool,
    frames: u64,
    records: u64,
    bytes: u64,
    damages: Vec<SideDamage>,
    end: Option<ReplayEnd>,
}

impl Replay {
    /// Prepares to read `rings` from where `state` (the superblock's) says. A ring may have fewer
    /// sides than it had, or none at all: then the end is a [`Verdict::Loss`] unless the caller
    /// leaves it at that. Fails when rings and state do not fit each other.
    pub fn open(rings: Vec<LogRing>, state: &LogState, pool: u64) -> Result<Self, LogError> {
        state.check()?;
        check_rings(&rings, false)?;
        let mut readers = Vec::new();
        let mut absent_rings = Vec::new();
        for ring_state in &state.rings {
            let ring = rings.iter().find(|ring| ring.index == ring_state.index);
            match ring {
                Some(ring) if ring.len_bytes != ring_state.len_bytes => {
                    let detail = format!(
                        "ring {} has {} bytes, the superblock says {}",
                        ring.index, ring.len_bytes, ring_state.len_bytes
                    );
                    return Err(LogError::StateMismatch { detail });
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
            goes_back: false,
            frames: 0,
            records: 0,
            bytes: 0,
            damages: Vec::new(),
            end: None,
            state: state.clone(),
        })
    }

    /// Makes this the replay of a log whose groups were committed by newer roots than the one that it
    /// is read for. The commit of a group ends the writing of its records, so one that was split may
    /// have no end: it is left out.
    #[must_use]
    pub fn going_back(mut self) -> Self {
        self.goes_back = true;
        self
    }

    /// The records of the next frame that has any, in the order of their appends; those of groups
    /// that the superblock already has are left out. `None` at the end: see [`Replay::end`].
    ///
    /// Records come out before the end is known. A caller that may not accept a loss applies them
    /// to memory only until it has seen the verdict.
    pub async fn next(&mut self) -> Result<Option<Vec<Record>>, LogError> {
        while self.end.is_none() {
            let mut taken = None;
            for reader in &mut self.readers {
                reader.look(self.expected, &mut self.damages).await;
                if reader.head_seq() == Some(self.expected) {
                    taken = reader.take();
                    break;
                }
            }
            let Some((frame, bytes)) = taken else {
                self.finish().await;
                break;
            };
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

    /// How it ended, once [`Replay::next`] has said `None`.
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

    /// Adds one entry to the write that it is a part of; gives back the write when it is whole.
    fn join(
        &mut self,
        seq: FrameSeq,
        entry: &RecordEntry,
        mut data: Vec<IoBytes>,
    ) -> Result<Option<Record>, LogError> {
        let refuse = |detail: &str| {
            let detail = format!("{detail} (volume {}, block {})", entry.volume, entry.lba);
            Err(LogError::Inconsistent { seq, detail })
        };
        let ended = |partial: &Record| self.goes_back && partial.txg < entry.txg;
        let before = self.partial.take().filter(|partial| !ended(partial));
        let joined = match (before, entry.piece) {
            (None, Piece::Last) => return refuse("the end of a split write has no beginning"),
            (Some(_), Piece::Whole) => return refuse("a split write was never ended"),
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
                    return refuse("a part of a split write does not follow the one before");
                };
                record.blocks = blocks;
                record.data.append(&mut data);
                record
            }
        };
        if entry.piece == Piece::Continues {
            self.partial = Some(joined);
            return Ok(None);
        }
        Ok(Some(joined))
    }

    /// No frame has the number that comes next: finds out what that means.
    async fn finish(&mut self) {
        let expected = self.expected;
        let mut found: BTreeMap<FrameSeq, Found> = BTreeMap::new();
        let mut places = Vec::new();
        let mut volumes_hint = BTreeSet::new();
        let mut torn = false;
        let mut unreadable = false;
        for reader in &mut self.readers {
            let rest = reader.examine(expected).await;
            torn |= rest.torn;
            unreadable |= rest.unreadable;
            places.extend(rest.places);
            volumes_hint.extend(rest.volumes_hint);
            for frame in rest.frames {
                self.watermark = self.watermark.max(frame.watermark);
                found.insert(frame.seq, frame);
            }
        }
        torn |= !found.is_empty();
        let verdict = if self.watermark >= expected || unreadable || !self.absent_rings.is_empty() {
            Verdict::Loss(Box::new(Loss {
                missing: missing_runs(expected, self.watermark, &found),
                watermark: self.watermark,
                frames_after: found.len() as u64,
                places,
                absent_rings: self.absent_rings.clone(),
                txg_before: self.last_txg,
                txg_after: found.values().map(|frame| frame.max_txg).min(),
                volumes_hint: volumes_hint.into_iter().collect(),
            }))
        } else if torn {
            Verdict::TornTail { seq: expected }
        } else {
            Verdict::CleanEnd
        };
        self.end = Some(ReplayEnd {
            frames: self.frames,
            records: self.records,
            bytes: self.bytes,
            last_seq: FrameSeq(expected.0 - 1),
            verdict,
            damages: std::mem::take(&mut self.damages),
        });
    }
}

/// The runs of numbers from `first` to `last` that `found` has not. Empty when `last` is lower,
/// which says that it is not known whether anything is missing.
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
