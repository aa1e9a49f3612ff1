//! Sending: a snapshot, or what it has changed since an older one, becomes a stream.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use forebay_device::{Device, DeviceError, IoBuf};
use forebay_format::config::VolumeConfig;
use forebay_format::snapshot::Snapshot;
use forebay_format::stream::{RECORD_BYTES, ResumeToken, StreamEncoder, StreamHeader};
use forebay_map::{DEDUP_VOLUME, ExtentKind};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, Lba, VolumeId};
use serde::{Deserialize, Serialize};

use crate::runs::runs_of;
use crate::transfer::error::TransferError;
use crate::transfer::full_name;
use crate::transfer::stored::AsStored;
use crate::volume::VolumeState;
use crate::{Pool, Volume};

/// Longest record of data.
const DATA_BYTES: u64 = 256 << 10;
/// Records whose data is read at the same time.
const READS: usize = 8;
/// What is looked at in one step.
const STEP_BYTES: u64 = 128 << 20;
/// Shared contents of which is known where they were sent: later ones are sent each time.
const MAX_CONTENTS: usize = 1 << 18;

/// What is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendOptions {
    /// The snapshot, `VOL@SNAP`; `None`: that of the token.
    pub snapshot: Option<String>,
    /// Only what changed since this older snapshot of the volume (its name without the volume's).
    pub base: Option<String>,
    /// Go on where an interrupted stream ended.
    pub token: Option<String>,
    /// Send compressed blocks as they are, and contents that are shared once.
    #[serde(default)]
    pub is_as_stored: bool,
}

/// `POOL/VOL@SNAP` that a resume token was made of; `None` for a word that is none.
#[must_use]
pub fn source_of_token(token: &str) -> Option<String> {
    ResumeToken::parse(token).map(|token| token.source)
}

/// A range of a volume that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    offset_bytes: u64,
    len_bytes: u64,
    holds: Holds,
}

/// What a range that is sent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Hole,
    Data,
    /// The same as the range from here on, which was sent before.
    Repeat(u64),
}

impl Piece {
    fn is_hole(&self) -> bool {
        self.holds == Holds::Hole
    }

    /// Whether `next` goes on with it. Only what is not read has no greatest length.
    fn goes_on_with(&self, next: &Self) -> bool {
        let follows = self.offset_bytes + self.len_bytes == next.offset_bytes;
        let len_bytes = self.len_bytes + next.len_bytes;
        follows
            && match (self.holds, next.holds) {
                (Holds::Hole, Holds::Hole) => true,
                (Holds::Data, Holds::Data) => len_bytes <= DATA_BYTES,
                (Holds::Repeat(from), Holds::Repeat(other)) => {
                    from + self.len_bytes == other && len_bytes <= DATA_BYTES
                }
                _ => false,
            }
    }
}

/// Which pieces a stream has, in order.
struct Plan {
    pool: Rc<Pool>,
    state: Rc<VolumeState>,
    base: Option<VolumeId>,
    at_bytes: u64,
    size_bytes: u64,
    found: VecDeque<Piece>,
    /// Where shared contents were sent first; `None`: all are sent each time.
    sent: Option<BTreeMap<u64, u64>>,
    slices: rt::Slices,
}

/// A stream on its way out.
pub struct Sender {
    pool: Rc<Pool>,
    header: StreamHeader,
    /// `POOL/VOL@SNAP`.
    name: String,
    versions: Vec<VolumeId>,
    device: Device,
    plan: Plan,
    encoder: Option<StreamEncoder>,
    first: Option<Vec<u8>>,
    queue: VecDeque<Queued>,
    /// They count as open, so that no schedule destroys them.
    _opened: Vec<Rc<VolumeState>>,
}

enum Queued {
    /// Nothing is read for it.
    Known(Piece),
    Data(Piece, rt::JoinHandle<Result<AsStored, DeviceError>>),
}

impl Pool {
    /// Begins to send.
    pub fn send(self: &Rc<Self>, options: &SendOptions) -> Result<Sender, TransferError> {
        let (snapshot, base, start_bytes) = self.what_to_send(options)?;
        let (snapshot, guid) = snapshot;
        let volume = self.name_of(snapshot.volume).unwrap_or_default();
        let header = StreamHeader {
            pool_guid: self.guid,
            guid,
            base_guid: base.as_ref().map_or(0, |(_, guid)| *guid),
            created_at: snapshot.created_at,
            size_bytes: snapshot.size_bytes,
            start_bytes,
            is_as_stored: options.is_as_stored,
            snapshot: snapshot.name.clone(),
            source: full_name(self, &volume),
            base: base.as_ref().map_or(String::new(), |(base, _)| base.name.clone()),
        };
        let base = base.map(|(base, _)| base.id);
        let (encoder, first) = StreamEncoder::begin(&header);
        let state = unlimited(&snapshot, &volume);
        let plan = Plan {
            pool: self.clone(),
            state: state.clone(),
            base,
            at_bytes: start_bytes,
            size_bytes: snapshot.size_bytes,
            found: VecDeque::new(),
            sent: options.is_as_stored.then(BTreeMap::new),
            slices: rt::Slices::new(),
        };
        let versions: Vec<VolumeId> = base.into_iter().chain([snapshot.id]).collect();
        let opened = versions.iter().filter_map(|id| self.snapshot_state(*id)).collect();
        Ok(Sender {
            pool: self.clone(),
            name: format!("{}@{}", header.source, header.snapshot),
            header,
            versions,
            // The stream ends with this pool, and the pool cannot be exported while it waits.
            device: Rc::new(Volume::of_this_pool_only(self.clone(), state)),
            plan,
            encoder: Some(encoder),
            first: Some(first),
            queue: VecDeque::new(),
            _opened: opened,
        })
    }

    /// The snapshot and its base, with their identities, and where to begin.
    #[allow(clippy::type_complexity)]
    fn what_to_send(
        &self,
        options: &SendOptions,
    ) -> Result<((Snapshot, u64), Option<(Snapshot, u64)>, u64), TransferError> {
        let token = options
            .token
            .as_deref()
            .map(|text| ResumeToken::parse(text).ok_or(TransferError::Token));
        let token = token.transpose()?;
        let named =
            options.snapshot.as_deref().map(|name| self.snapshot_named(name)).transpose()?;
        let Some(token) = token else {
            let Some((volume, snapshot)) = named else { return Err(TransferError::Token) };
            let all = self.identities(volume.id);
            let guid_of = |id| all.iter().find(|(s, _)| s.id == id).cloned();
            let found = guid_of(snapshot.id).ok_or(TransferError::Token)?;
            let Some(base) = &options.base else { return Ok((found, None, 0)) };
            let older = all.iter().find(|(s, _)| s.name == *base && s.id < snapshot.id);
            let older = older.cloned().ok_or_else(|| TransferError::NotOlder {
                base: base.clone(),
                name: options.snapshot.clone().unwrap_or_default(),
            })?;
            return Ok((found, Some(older), 0));
        };
        let volumes = match &named {
            Some((volume, _)) => vec![volume.id],
            None => self.snapshots.volumes(),
        };
        for volume in volumes {
            let all = self.identities(volume);
            let by_guid = |guid| all.iter().find(|(_, other)| *other == guid).cloned();
            let Some(found) = by_guid(token.guid) else { continue };
            if named.as_ref().is_some_and(|(_, snapshot)| snapshot.id != found.0.id) {
                break;
            }
            if token.base_guid == 0 {
                return Ok((found, None, token.start_bytes));
            }
            let base = by_guid(token.base_guid).filter(|(base, _)| base.id < found.0.id);
            let base = base.ok_or(TransferError::NoSource { name: token.source })?;
            return Ok((found, Some(base), token.start_bytes));
        }
        Err(match &options.snapshot {
            Some(name) => TransferError::OtherSource { name: format!("{}/{name}", self.name()) },
            None => TransferError::NoSource { name: token.source },
        })
    }
}

/// The state of a snapshot whose reads have no limit and leave the read cache alone.
fn unlimited(snapshot: &Snapshot, volume: &str) -> Rc<VolumeState> {
    VolumeState::of_snapshot(&VolumeConfig {
        id: snapshot.id.0,
        name: format!("{volume}@{}", snapshot.name),
        size_bytes: snapshot.size_bytes,
        sparse: true,
        origin: None,
        writers: Vec::new(),
        properties: BTreeMap::from([("primarycache".to_owned(), "none".to_owned())]),
    })
}

impl Plan {
    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Option<Piece> {
        loop {
            // A hole may go on in the next step.
            let is_whole = match self.found.front() {
                Some(piece) => !piece.is_hole() || self.found.len() > 1,
                None => false,
            };
            if is_whole || self.at_bytes == self.size_bytes {
                return self.found.pop_front();
            }
            self.look();
            self.slices.step().await;
        }
    }

    /// Looks at the next part of the volume.
    fn look(&mut self) {
        let from = self.at_bytes;
        let versions = [self.base.unwrap_or(self.state.id), self.state.id];
        let hole_end = self.pool.end_of_holes(&versions, from, self.size_bytes);
        if hole_end > from {
            // A base has the same holes there.
            if self.base.is_none() {
                self.add(from, hole_end - from, Holds::Hole);
            }
            self.at_bytes = hole_end;
            return;
        }
        let len = STEP_BYTES.min(self.size_bytes - from);
        let mut at = from;
        for (len_bytes, is_sent) in self.changes(from, len) {
            if is_sent {
                self.add_changed(at, len_bytes);
            }
            at += len_bytes;
        }
        self.at_bytes = at;
    }

    /// Runs that are sent, or not.
    fn changes(&self, from: u64, len: u64) -> Vec<(u64, bool)> {
        let Some(base) = self.base else { return vec![(len, true)] };
        let map = self.pool.store.map.borrow();
        let versions = (base, self.state.id);
        runs_of(from, len, |first, blocks, push| map.changes(versions, Lba(first), blocks, push))
    }

    fn add_changed(&mut self, from: u64, len: u64) {
        let (mut at, end) = (from, from + len);
        while at < end {
            for run in self.pool.allocation(&self.state, at, end - at) {
                match (run.hole, self.sent.is_some()) {
                    (true, _) => self.add(at, run.len_bytes, Holds::Hole),
                    (false, false) => self.add(at, run.len_bytes, Holds::Data),
                    (false, true) => self.add_shared(at, run.len_bytes),
                }
                at += run.len_bytes;
            }
        }
    }

    fn add(&mut self, offset_bytes: u64, len_bytes: u64, holds: Holds) {
        let longest = if holds == Holds::Hole { u64::MAX } else { DATA_BYTES };
        let (mut at, mut left) = (offset_bytes, len_bytes);
        while left > 0 {
            let piece = Piece { offset_bytes: at, len_bytes: left.min(longest), holds };
            (at, left) = (at + piece.len_bytes, left - piece.len_bytes);
            match self.found.back_mut() {
                Some(last) if last.goes_on_with(&piece) => last.len_bytes += piece.len_bytes,
                _ => self.found.push_back(piece),
            }
        }
    }

    /// Adds a range without holes: blocks whose contents were sent refer to where.
    fn add_shared(&mut self, from: u64, len: u64) {
        let mut contents = Vec::new();
        let map = self.pool.store.map.borrow();
        map.lookup_range(self.state.id, Lba(from / BLOCK_BYTES), len / BLOCK_BYTES, |extent| {
            let first = match extent.kind {
                ExtentKind::Mapped { home, bound, .. } | ExtentKind::Packed { home, bound, .. } => {
                    Some(bound).filter(|_| home == DEDUP_VOLUME)
                }
                ExtentKind::Hole => None,
            };
            contents.push((extent.lba.0 * BLOCK_BYTES, extent.blocks, first));
        });
        drop(map);
        for (at, blocks, first) in contents {
            let Some(Lba(first)) = first else {
                self.add(at, blocks * BLOCK_BYTES, Holds::Data);
                continue;
            };
            for index in 0..blocks {
                let at = at + index * BLOCK_BYTES;
                let holds = self.content_at(first + index, at);
                self.add(at, BLOCK_BYTES, holds);
            }
        }
    }

    /// How content number `content` is sent at `at`.
    fn content_at(&mut self, content: u64, at: u64) -> Holds {
        let Some(sent) = &mut self.sent else { return Holds::Data };
        if let Some(from) = sent.get(&content) {
            return Holds::Repeat(*from);
        }
        if sent.len() < MAX_CONTENTS {
            sent.insert(content, at);
        }
        Holds::Data
    }
}

impl Sender {
    /// `POOL/VOL@SNAP` that is sent.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the base without the volume's.
    #[must_use]
    pub fn base(&self) -> Option<&str> {
        self.header.is_incremental().then_some(self.header.base.as_str())
    }

    /// Where the stream begins in the volume: above 0 after an interruption.
    #[must_use]
    pub fn start_bytes(&self) -> u64 {
        self.header.start_bytes
    }

    /// Length of the stream, before what compression saves. Nothing is read for it but the map.
    pub async fn estimate_bytes(&self) -> Result<u64, TransferError> {
        const END_BYTES: u64 = 24;
        let mut plan = Plan {
            pool: self.pool.clone(),
            state: self.plan.state.clone(),
            base: self.plan.base,
            at_bytes: self.header.start_bytes,
            size_bytes: self.header.size_bytes,
            found: VecDeque::new(),
            sent: self.plan.sent.as_ref().map(|_| BTreeMap::new()),
            slices: rt::Slices::new(),
        };
        let first = StreamEncoder::begin(&self.header).1.len() as u64;
        let mut bytes = first + RECORD_BYTES as u64 + END_BYTES;
        while let Some(piece) = plan.next().await {
            bytes += RECORD_BYTES as u64
                + match piece.holds {
                    Holds::Hole => 0,
                    Holds::Data => piece.len_bytes,
                    Holds::Repeat(_) => 8,
                };
        }
        self.check_here()?;
        Ok(bytes)
    }

    /// The next bytes of the stream; `None` after the last ones.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, TransferError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        while self.queue.len() < READS {
            let Some(piece) = self.plan.next().await else { break };
            self.queue.push_back(match piece.holds {
                Holds::Data => self.read(piece),
                _ => Queued::Known(piece),
            });
        }
        let next = match self.queue.pop_front() {
            Some(Queued::Data(piece, data)) => Some((piece, Some(data.await?))),
            Some(Queued::Known(piece)) => Some((piece, None)),
            None => None,
        };
        // What was read of a snapshot that is being destroyed may be of a newer version.
        self.check_here()?;
        let Some(encoder) = &mut self.encoder else { return Ok(None) };
        let Some((Piece { offset_bytes, len_bytes, holds }, data)) = next else {
            return Ok(self.encoder.take().map(StreamEncoder::end));
        };
        Ok(Some(match (data, holds) {
            (Some(AsStored::Units(units)), _) => encoder.units(offset_bytes, len_bytes, &units),
            (Some(AsStored::Plain(data)), _) => encoder.data(offset_bytes, &data),
            (None, Holds::Repeat(from)) => encoder.repeat(offset_bytes, len_bytes, from),
            (None, _) => encoder.hole(offset_bytes, len_bytes),
        }))
    }

    fn read(&self, piece: Piece) -> Queued {
        let (device, pool) = (self.device.clone(), self.pool.clone());
        let (version, as_stored) = (self.plan.state.id, self.header.is_as_stored);
        let reading = rt::spawn(async move {
            let (at, len) = (piece.offset_bytes, piece.len_bytes);
            if as_stored {
                if let Some(units) = pool.stored_units(version, at, len, &device).await {
                    return Ok(AsStored::Units(units?));
                }
            }
            device.read(at, IoBuf::recycled(len as usize)).await.map(AsStored::Plain)
        });
        Queued::Data(piece, reading)
    }

    /// Waits for reads that are under way: afterwards nothing of the pool is held.
    pub async fn end(self) {
        for queued in self.queue {
            if let Queued::Data(_, data) = queued {
                let _ = data.await;
            }
        }
    }

    fn check_here(&self) -> Result<(), TransferError> {
        let is_here = |id: &VolumeId| self.pool.snapshots.get(*id).is_some_and(|s| !s.is_dying);
        if self.pool.is_stopped() {
            return Err(self.pool.why_ended().into());
        }
        if self.versions.iter().all(is_here) {
            return Ok(());
        }
        Err(TransferError::Gone { name: self.name.clone() })
    }
}

#[cfg(test)]
mod tests;
