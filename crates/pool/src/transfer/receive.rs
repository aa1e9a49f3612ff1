//! Receiving: a stream becomes a snapshot of a volume, whole or not at all.
//!
//! The configuration says that a volume is being received before its first block is written, and
//! says so until a root has the snapshot. So after a crash the volume is at its base, or whole, or
//! known to be neither.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{IoBuf, IoBytes, Operation};
use forebay_format::receiving::{RECEIVED, RECEIVING, ReceivedGuids, Receiving};
use forebay_format::snapshot::Snapshot;
use forebay_format::stream::{
    MAX_PAYLOAD_BYTES, Record, StreamDecoder, StreamError, StreamFlaw, StreamHeader,
};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, Lba, Nanos, TxgId, VolumeId};
use serde::{Deserialize, Serialize};

use crate::Pool;
use crate::admin::error::VolumeError;
use crate::admin::properties::check_snapshot_name;
use crate::admin::volumes::{check_fits, check_size};
use crate::layout::LEAST_DIRTY_BYTES;
use crate::spec::VolumeSpec;
use crate::transfer::error::TransferError;
use crate::transfer::full_name;
use crate::transfer::stored::expanded;
use crate::volume::{Arrival, VolumeState};

/// The version of pools from which on they receive streams: earlier programs would show a volume
/// that is not whole.
const WITH_STREAMS: u32 = 7;

/// How often the configuration is told how far a stream is that is kept when it is interrupted.
const KEEP_INTERVAL: Nanos = Nanos::from_secs(1);
/// What is looked at in one step when a volume is compared with its newest snapshot.
const STEP_BYTES: u64 = 128 << 20;

/// Any record is written at once: a writer that waits for more than a quarter of the dirty limit
/// could wait for a commit that no task asks for.
const _: () = assert!(MAX_PAYLOAD_BYTES as u64 <= LEAST_DIRTY_BYTES / 4);

/// How a stream is received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveOptions {
    /// Take the volume back to its newest snapshot first.
    pub roll_back: bool,
    /// Keep what was received when the stream is interrupted.
    pub is_resumable: bool,
}

/// What was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// `POOL/VOL@SNAP` that is there now.
    pub name: String,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Bytes of holes.
    pub hole_bytes: u64,
}

/// What a stream that was given up has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftBy {
    /// Everything is as before it.
    Nothing,
    /// What was received is kept; this token goes on.
    Token(String),
    /// It could not be undone yet: the next import, or an end of the reception, does so.
    Part,
}

/// A stream on its way in.
pub struct Receiver {
    pool: Rc<Pool>,
    /// The volume's name without the pool's.
    volume: String,
    options: ReceiveOptions,
    cut_off: Box<dyn Fn()>,
    decoder: StreamDecoder,
    begun: Option<Begun>,
    /// The first record is being worked on, or was when it was given up.
    is_beginning: bool,
}

/// A reception after its first record.
struct Begun {
    volume: Rc<VolumeState>,
    receiving: Receiving,
    is_incremental: bool,
    /// Up to where everything is in groups.
    absorbed_bytes: u64,
    /// What the configuration is told of when this group is committed.
    waiting: Option<(TxgId, u64)>,
    kept_at: Nanos,
}

/// A record that the decoder lends, as a value of its own.
enum Step {
    Begin(StreamHeader),
    Data(u64, IoBytes),
    Units(u64, Vec<u8>),
    Repeat { offset_bytes: u64, len_bytes: u64, from_bytes: u64 },
    Hole(u64, u64),
    End,
}

impl From<Record<'_>> for Step {
    fn from(record: Record<'_>) -> Self {
        match record {
            Record::Begin(header) => Self::Begin(header),
            Record::Data { offset_bytes, data } => {
                Self::Data(offset_bytes, IoBuf::copy_of(data).freeze())
            }
            Record::Units { offset_bytes, units } => Self::Units(offset_bytes, units.to_vec()),
            Record::Repeat { offset_bytes, len_bytes, from_bytes } => {
                Self::Repeat { offset_bytes, len_bytes, from_bytes }
            }
            Record::Hole { offset_bytes, len_bytes } => Self::Hole(offset_bytes, len_bytes),
            Record::End(_) => Self::End,
        }
    }
}

impl Pool {
    /// Begins to receive volume `volume` (its name without the pool's). The first record says what
    /// it is.
    #[must_use]
    pub fn receive(self: &Rc<Self>, volume: &str, options: ReceiveOptions) -> Receiver {
        let (pool, volume) = (self.clone(), volume.to_owned());
        let decoder = StreamDecoder::new();
        let cut_off = Box::new(|| ());
        Receiver { pool, volume, options, cut_off, decoder, begun: None, is_beginning: false }
    }

    /// Makes the volume ready for what a stream holds.
    async fn begin_receive(
        self: &Rc<Self>,
        name: &str,
        header: &StreamHeader,
        (options, cut_off): (ReceiveOptions, &dyn Fn()),
    ) -> Result<Begun, TransferError> {
        let _turn = self.volume_turn().await?;
        self.check_format(WITH_STREAMS, "receiving a stream")?;
        check_snapshot_name(&header.snapshot)?;
        check_size(header.size_bytes)?;
        let full = full_name(self, name);
        let existing = self.volume_named(name);
        let partly = existing.as_ref().ok().filter(|v| v.arrival.get() != Arrival::Whole);
        if let Some(volume) = partly {
            let begun = self.go_on_receiving(volume, header, options)?;
            if begun.is_made_ready() {
                volume.arrival.set(Arrival::Underway);
                return Ok(begun);
            }
            // Whether it got as far as its base and its new size is not known.
            self.undo_receive(volume, &begun.receiving).await?;
        }
        if header.start_bytes > 0 {
            return Err(TransferError::NothingToResume { name: full });
        }
        let mut receiving = Receiving {
            guid: header.guid,
            snapshot: header.snapshot.clone(),
            created_at: header.created_at,
            size_bytes: header.size_bytes,
            source: header.source.clone(),
            base_guid: header.base_guid,
            base: None,
            done_bytes: 0,
            is_resumable: options.is_resumable,
        };
        let volume = match (existing, header.is_incremental()) {
            (Err(_), false) => self.begin_whole(name, &receiving).await?,
            (Ok(_), false) => {
                let (pool, volume) = (self.name(), name.to_owned());
                return Err(VolumeError::Exists { pool, volume }.into());
            }
            (volume, true) => {
                self.begin_increment(volume?, header, (options, cut_off), &mut receiving).await?
            }
        };
        let is_incremental = header.is_incremental();
        Ok(Begun::new(volume, receiving, is_incremental))
    }

    /// An interrupted stream that goes on.
    fn go_on_receiving(
        &self,
        volume: &Rc<VolumeState>,
        header: &StreamHeader,
        options: ReceiveOptions,
    ) -> Result<Begun, TransferError> {
        let name = format!("{}/{}", self.name(), volume.name.borrow());
        let receiving = volume.receiving();
        let Some(mut receiving) = receiving.filter(|_| volume.arrival.get() != Arrival::Underway)
        else {
            return Err(VolumeError::Receiving { name, is_underway: true }.into());
        };
        if header.start_bytes == 0 && receiving.done_bytes > 0 {
            return Err(TransferError::PartlyReceived { name });
        }
        let is_same = receiving.guid == header.guid && receiving.base_guid == header.base_guid;
        if !is_same || receiving.done_bytes != header.start_bytes {
            let (found_bytes, due_bytes) = (header.start_bytes, receiving.done_bytes);
            return Err(TransferError::OtherPlace { name, found_bytes, due_bytes });
        }
        receiving.is_resumable |= options.is_resumable;
        Ok(Begun::new(volume.clone(), receiving, header.is_incremental()))
    }

    /// A new volume that no client sees.
    async fn begin_whole(
        &self,
        name: &str,
        receiving: &Receiving,
    ) -> Result<Rc<VolumeState>, TransferError> {
        self.check_new_name(name)?;
        let properties = [(RECEIVING.to_owned(), receiving.to_text())].into();
        let (name, size_bytes) = (name.to_owned(), receiving.size_bytes);
        self.add_volume(VolumeSpec { name: name.clone(), size_bytes, sparse: true, properties })
            .await?;
        let volume = self.volume_named(&name)?;
        volume.arrival.set(Arrival::Underway);
        Ok(volume)
    }

    /// A volume as its newest snapshot is, taken away from its clients.
    async fn begin_increment(
        self: &Rc<Self>,
        before: Rc<VolumeState>,
        header: &StreamHeader,
        (options, cut_off): (ReceiveOptions, &dyn Fn()),
        receiving: &mut Receiving,
    ) -> Result<Rc<VolumeState>, TransferError> {
        let base = self.base_here(&before, header)?;
        if self.snapshots.named(before.id, &header.snapshot).is_some() {
            let name = format!("{}/{}@{}", self.name(), before.name.borrow(), header.snapshot);
            return Err(VolumeError::SnapshotExists { name }.into());
        }
        let modified = || TransferError::Modified {
            base: format!("{}/{}@{}", self.name(), before.name.borrow(), base.name),
        };
        if !options.roll_back && self.differs_from(&before, &base).await {
            return Err(modified());
        }
        // No write that is on its way gets into what is received. What was answered is committed.
        cut_off();
        before.end();
        let volume = self.anew(&before)?;
        let hidden = Hidden::new(&volume);
        self.commit_all().await?;
        let differs = self.differs_from(&volume, &base).await;
        if differs && !options.roll_back {
            return Err(modified());
        }
        receiving.base = Some(base.id.0);
        self.keep_receiving(&volume, Some(receiving));
        let fits = check_fits(&self.config.borrow());
        if let Err(error) = fits {
            self.keep_receiving(&volume, None);
            return Err(VolumeError::from(error).into());
        }
        let made_ready = async {
            if differs {
                self.go_back(&volume, &base, Vec::new()).await?;
            }
            if header.size_bytes != volume.size_bytes.get() {
                self.set_size(&volume, header.size_bytes).await?;
            }
            Ok::<(), VolumeError>(self.commit_all().await?)
        };
        if let Err(error) = made_ready.await {
            volume.arrival.set(Arrival::Interrupted);
            let _ = self.undo_receive(&volume, receiving).await;
            return Err(error.into());
        }
        hidden.keep();
        Ok(volume)
    }

    /// The newest snapshot, if it is the one that a stream goes on from.
    fn base_here(
        &self,
        volume: &VolumeState,
        header: &StreamHeader,
    ) -> Result<Snapshot, TransferError> {
        let newest = self.identities(volume.id).pop();
        match newest {
            Some((base, guid)) if guid == header.base_guid => Ok(base),
            newest => Err(TransferError::OtherBase {
                name: format!("{}/{}", self.name(), volume.name.borrow()),
                base: header.base.clone(),
                newest: newest.map(|(newest, _)| newest.name),
            }),
        }
    }

    /// Whether a volume was changed since its newest snapshot.
    async fn differs_from(&self, volume: &VolumeState, base: &Snapshot) -> bool {
        let size_bytes = volume.size_bytes.get();
        let name = volume.name.borrow().clone();
        let mut slices = rt::Slices::new();
        let mut at = 0;
        while at < size_bytes {
            let hole_end = self.end_of_holes(&[base.id, volume.id], at, size_bytes);
            if hole_end > at {
                let blocks = (hole_end - at) / BLOCK_BYTES;
                let dirty =
                    self.dirty.groups.borrow().lookup(volume.id, Lba(at / BLOCK_BYTES), blocks);
                if dirty.iter().any(|extent| extent.content.is_some()) {
                    return true;
                }
                at = hole_end;
                continue;
            }
            let len = STEP_BYTES.min(size_bytes - at);
            let Some(runs) = self.changes_since(&name, base.id, at, len) else { return true };
            if runs.iter().any(|run| run.changed) {
                return true;
            }
            at += runs.iter().map(|run| run.len_bytes).sum::<u64>();
            slices.step().await;
        }
        size_bytes != base.size_bytes
    }

    /// The volume with a running state of its own, which no client has.
    fn anew(&self, before: &VolumeState) -> Result<Rc<VolumeState>, VolumeError> {
        let config = self.config.borrow();
        let mine = config.volumes.iter().find(|v| v.id == before.id.0);
        let (pool, volume) = (config.name.clone(), before.name.borrow().clone());
        let mine = mine.ok_or(VolumeError::NotFound { pool, volume })?;
        let state = VolumeState::new(mine);
        self.volumes.borrow_mut().insert(before.id, state.clone());
        Ok(state)
    }

    /// Takes the snapshot of a whole stream. From then on clients see the volume.
    async fn end_receive(
        &self,
        volume: &Rc<VolumeState>,
        receiving: &Receiving,
    ) -> Result<(), TransferError> {
        let _turn = self.admin.lock().await;
        let new = [(volume.clone(), receiving.snapshot.clone())];
        let id = self.take_new_snapshots(&new, receiving.created_at).await?;
        Ok(self.reveal(volume, receiving, id).await?)
    }

    /// Makes a volume whole that has its received snapshot `id`.
    pub(super) async fn reveal(
        &self,
        volume: &Rc<VolumeState>,
        receiving: &Receiving,
        id: VolumeId,
    ) -> Result<(), VolumeError> {
        let mut received = volume.property(RECEIVED).map(|text| ReceivedGuids::parse(&text));
        let guids = &mut received.get_or_insert_default().0;
        guids.retain(|id, _| self.snapshots.contains(*id));
        guids.insert(id, receiving.guid);
        self.keep_hidden(volume, RECEIVED, received.map(|received| received.to_text()));
        self.keep_receiving(volume, None);
        self.commit_all().await?;
        volume.arrival.set(Arrival::Whole);
        Ok(())
    }
}

/// A volume that is being made ready for a stream. If that is given up halfway, clients see the
/// volume again, or it counts as interrupted.
struct Hidden<'a> {
    volume: &'a VolumeState,
    is_kept: bool,
}

impl<'a> Hidden<'a> {
    fn new(volume: &'a VolumeState) -> Self {
        volume.arrival.set(Arrival::Underway);
        Self { volume, is_kept: false }
    }

    /// The volume is ready.
    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        if !self.is_kept && self.volume.arrival.get() == Arrival::Underway {
            self.volume.arrival.set(match self.volume.receiving() {
                Some(_) => Arrival::Interrupted,
                None => Arrival::Whole,
            });
        }
    }
}

impl Begun {
    fn new(volume: Rc<VolumeState>, receiving: Receiving, is_incremental: bool) -> Self {
        let absorbed_bytes = receiving.done_bytes;
        let kept_at = rt::now();
        Self { volume, receiving, is_incremental, absorbed_bytes, waiting: None, kept_at }
    }

    /// Whether the volume is known to have been made ready for what the stream brings: a new one
    /// is from the first, another one when something of the stream is kept.
    fn is_made_ready(&self) -> bool {
        !self.is_incremental || self.receiving.done_bytes > 0
    }

    /// Tells the configuration how far the stream is in the main store.
    fn keep_progress(&mut self, pool: &Pool) {
        if !self.receiving.is_resumable {
            return;
        }
        let open = pool.dirty.groups.borrow().open_txg();
        match self.waiting {
            None => self.waiting = Some((open, self.absorbed_bytes)),
            Some((txg, _)) if txg == open => self.waiting = Some((open, self.absorbed_bytes)),
            Some((txg, done_bytes)) if pool.sync.committed.get() >= txg => {
                self.waiting = None;
                if rt::now().since(self.kept_at) >= KEEP_INTERVAL {
                    self.kept_at = rt::now();
                    self.receiving.done_bytes = done_bytes;
                    pool.keep_receiving(&self.volume, Some(&self.receiving));
                }
            }
            Some(_) => {}
        }
    }
}

impl Receiver {
    /// Has `cut_off` called when the volume is taken from its clients: the stream fits it.
    #[must_use]
    pub fn with_cut_off(mut self, cut_off: impl Fn() + 'static) -> Self {
        self.cut_off = Box::new(cut_off);
        self
    }

    /// Takes the next bytes of the stream. After an error the stream is to be given up.
    pub async fn feed(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.decoder.push(bytes);
        while let Some(step) = self.decoder.next_record()?.map(Step::from) {
            match step {
                Step::Begin(header) => {
                    self.is_beginning = true;
                    let how = (self.options, &*self.cut_off);
                    let begun = self.pool.begin_receive(&self.volume, &header, how);
                    let begun = begun.await;
                    self.is_beginning = false;
                    self.begun = Some(begun?);
                }
                Step::Data(offset_bytes, data) => self.write(offset_bytes, &data).await?,
                Step::Units(offset_bytes, units) => {
                    let data = expanded(units).await;
                    let data = data.ok_or_else(|| self.decoder.refuse(StreamFlaw::Units))?;
                    self.write(offset_bytes, &data.freeze()).await?;
                }
                Step::Repeat { offset_bytes, len_bytes, from_bytes } => {
                    let Some(begun) = &self.begun else { continue };
                    let name = full_name(&self.pool, &self.volume);
                    let buf = IoBuf::recycled(len_bytes as usize);
                    // Clients cannot read the volume yet.
                    let data = self.pool.read(&begun.volume, &name, from_bytes, buf).await?;
                    self.write(offset_bytes, &data.freeze()).await?;
                }
                Step::Hole(offset_bytes, len_bytes) => self.clear(offset_bytes, len_bytes).await?,
                Step::End => {}
            }
        }
        Ok(())
    }

    /// At the end of the input: the snapshot is there, or an error says why not, and the stream is
    /// to be given up.
    pub async fn finish(&mut self) -> Result<Received, TransferError> {
        self.decoder.finish()?;
        let Some(begun) = &self.begun else {
            let flaw = StreamFlaw::Truncated;
            return Err(StreamError { record: 0, offset_bytes: 0, flaw }.into());
        };
        self.pool.end_receive(&begun.volume, &begun.receiving).await?;
        let totals = self.decoder.totals();
        Ok(Received {
            name: format!("{}@{}", full_name(&self.pool, &self.volume), begun.receiving.snapshot),
            data_bytes: totals.data_bytes,
            hole_bytes: totals.hole_bytes,
        })
    }

    async fn write(&mut self, offset_bytes: u64, data: &IoBytes) -> Result<(), TransferError> {
        let Some(begun) = &mut self.begun else { return Ok(()) };
        let pool = &self.pool;
        let name = full_name(pool, &self.volume);
        let len_bytes = data.len() as u64;
        pool.check_running(&name, Operation::Write, offset_bytes, len_bytes)?;
        pool.write_part(&begun.volume, &name, offset_bytes, data.clone(), false).await?;
        begun.absorbed_bytes = offset_bytes + len_bytes;
        begun.keep_progress(pool);
        Ok(())
    }

    async fn clear(&mut self, offset_bytes: u64, len_bytes: u64) -> Result<(), TransferError> {
        let Some(begun) = &mut self.begun else { return Ok(()) };
        // A new volume has nothing there.
        if begun.is_incremental {
            let name = full_name(&self.pool, &self.volume);
            let (first, end) =
                (offset_bytes / BLOCK_BYTES, (offset_bytes + len_bytes) / BLOCK_BYTES);
            let how = (Operation::Discard, false);
            self.pool.check_running(&name, Operation::Discard, offset_bytes, len_bytes)?;
            self.pool.absorb_hole(&begun.volume, &name, how, first..end, &Cell::new(0)).await?;
        }
        begun.absorbed_bytes = offset_bytes + len_bytes;
        begun.keep_progress(&self.pool);
        Ok(())
    }

    /// Ends a stream that failed or was interrupted: what it has brought is undone, or kept for a
    /// later stream to go on with.
    pub async fn give_up(mut self) -> LeftBy {
        let pool = self.pool.clone();
        if self.begun.is_none() {
            let volume = pool.volume_named(&self.volume);
            let is_left = |volume: Rc<VolumeState>| volume.arrival.get() == Arrival::Interrupted;
            return match self.is_beginning && volume.is_ok_and(is_left) {
                true => LeftBy::Part,
                false => LeftBy::Nothing,
            };
        }
        let _turn = pool.admin.lock().await;
        // Until here the stream counts as interrupted when this is canceled.
        let Some(mut begun) = self.begun.take() else { return LeftBy::Nothing };
        begun.volume.arrival.set(Arrival::Interrupted);
        let is_kept = begun.receiving.is_resumable && begun.absorbed_bytes > 0;
        let outcome = match is_kept {
            true => pool.keep_part(&mut begun).await,
            false => pool.undo_receive(&begun.volume, &begun.receiving).await,
        };
        match (outcome, pool.resume_token(&begun.volume)) {
            (Err(_), _) => LeftBy::Part,
            (Ok(()), Some(token)) => LeftBy::Token(token.to_text()),
            (Ok(()), None) => LeftBy::Nothing,
        }
    }
}

impl Drop for Receiver {
    /// A stream that is dropped before its end is interrupted.
    fn drop(&mut self) {
        if let Some(begun) = &self.begun {
            if begun.volume.arrival.get() == Arrival::Underway {
                begun.volume.arrival.set(Arrival::Interrupted);
            }
        }
    }
}

impl Pool {
    async fn keep_part(&self, begun: &mut Begun) -> Result<(), VolumeError> {
        self.commit_all().await?;
        begun.receiving.done_bytes = begun.absorbed_bytes;
        self.keep_receiving(&begun.volume, Some(&begun.receiving));
        Ok(self.commit_all().await?)
    }
}
