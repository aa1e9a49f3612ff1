//! The chain of a device: reading what others have appended, appending, checkpoints.
//!
//! What enters: changes that count together. What leaves: the device's state. What always holds:
//! an entry is created only at the place after all that this process knows, so a writer that has
//! missed an entry cannot append. Who calls: the device.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{DeviceError, ErrorKind, IoBuf, IoBytes, Operation};
use forebay_format::FormatError;
use forebay_format::objects::{
    Checkpoint, DEVICE_NAME, Entry, ObjectId, Record, checkpoint_name, entry_name, position_of,
};
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::failed;
use crate::requests::Requests;
use crate::state::State;
use crate::store::StoreError;

/// Entries after which a checkpoint is written.
const CHECKPOINT_ENTRIES: u64 = 128;
/// Bytes of entries after which a checkpoint is written, if it is not larger itself.
const CHECKPOINT_BYTES: u64 = 8 << 20;
/// Entries that are asked for at once, once there is one more.
const ENTRIES_AHEAD: u64 = 8;
/// For how long a look at the chain of a device that others may write holds good.
const FRESH_SPAN: Nanos = Nanos::from_millis(100);
/// How often a checkpoint is looked for that a listing names and that has been deleted since.
const LISTINGS: u32 = 8;
/// The pause between them.
const LISTING_PAUSE: Nanos = Nanos::from_millis(500);
/// How often a process that appends looks whether the store still has the device.
const PRESENCE_INTERVAL: Nanos = Nanos::from_secs(60);

/// The chain of a device, as far as this process knows it.
pub(crate) struct Chain {
    pub requests: Requests,
    /// Drawn for this process and this opening.
    pub writer: u64,
    /// This machine.
    pub host: u64,
    pub state: RefCell<State>,
    /// Whether the store has the device: one that was never written is not there.
    formatted: Cell<bool>,
    /// A checkpoint after which this process knows every entry.
    base: Cell<u64>,
    has_appended: Cell<bool>,
    /// Whether the store was seen to refuse a second object of one name.
    is_fenced: Cell<bool>,
    /// Held while an entry is appended.
    pub appending: rt::sync::Mutex<()>,
    /// When the chain was looked at.
    looked_at: Cell<Option<Nanos>>,
    /// When the device's first object was seen to be there.
    present_at: Cell<Option<Nanos>>,
    /// Entries and bytes since the last checkpoint.
    since: Cell<(u64, u64)>,
    /// Entries that may be deleted once checkpoints cover them.
    covered: RefCell<Vec<u64>>,
    /// Checkpoints that are kept, in order.
    checkpoints: RefCell<Vec<u64>>,
    checkpointing: Cell<bool>,
}

impl Chain {
    /// Reads the device behind `requests`; one of `new_size_bytes` if there is none. `at_most`: see
    /// [`Requests::open_within`].
    pub async fn open(
        requests: Requests,
        host: u64,
        new_size_bytes: u64,
        at_most: Option<Nanos>,
    ) -> Result<Rc<Self>, DeviceError> {
        let chain = Rc::new(Self {
            requests,
            writer: rt::random_u64(),
            host,
            state: RefCell::new(State::empty(new_size_bytes)),
            formatted: Cell::new(false),
            base: Cell::new(0),
            has_appended: Cell::new(false),
            is_fenced: Cell::new(false),
            appending: rt::sync::Mutex::new(()),
            looked_at: Cell::new(None),
            present_at: Cell::new(None),
            since: Cell::default(),
            covered: RefCell::default(),
            checkpoints: RefCell::default(),
            checkpointing: Cell::new(false),
        });
        let opened = async {
            chain.find().await?;
            if chain.formatted.get() { chain.check_whole().await } else { Ok(()) }
        };
        let opened = match at_most {
            Some(at_most) => chain.requests.open_within(at_most, opened).await,
            None => opened.await,
        };
        opened.map_err(|error| chain.failed(Operation::Open, error))?;
        Ok(chain)
    }

    pub fn failed(&self, operation: Operation, error: StoreError) -> DeviceError {
        failed(self.requests.name(), operation, 0, 0, error)
    }

    /// Whether this process wrote the last entry.
    pub fn is_last_writer(&self) -> bool {
        self.has_appended.get() && self.state.borrow().writer == self.writer
    }

    /// Reads the device, if there is one.
    async fn find(&self) -> Result<(), StoreError> {
        match self.requests.get(DEVICE_NAME, None).await {
            Ok(parts) => {
                let empty = decoded(&parts, Checkpoint::decode)?;
                self.state.borrow_mut().size_bytes = empty.size_bytes;
                self.formatted.set(true);
                self.load().await?;
                self.follow().await
            }
            Err(StoreError::Missing) => self.check_empty().await,
            Err(error) => Err(error),
        }
    }

    /// Fails if entries lie past the end of the chain: the store has lost the one that leads to
    /// them, and the next entry would take its place.
    async fn check_whole(&self) -> Result<(), StoreError> {
        for _ in 0..LISTINGS {
            let names = self.requests.list("chain/").await?;
            let last = names.iter().filter_map(|name| position_of(name)).max();
            let is_past = || last.is_some_and(|last| last > self.state.borrow().position);
            if !is_past() {
                return Ok(());
            }
            // Another machine may have appended since, or the listing of checkpoints lagged.
            let before = self.state.borrow().position;
            self.load().await?;
            self.follow().await?;
            if !is_past() {
                // A new listing may have new entries of that machine, again and again.
                return Ok(());
            }
            if self.state.borrow().position == before {
                rt::sleep(LISTING_PAUSE).await;
            }
        }
        Err(StoreError::Lost { object: entry_name(self.state.borrow().position + 1) })
    }

    /// Reads the newest checkpoint, if it is newer than what is known.
    async fn load(&self) -> Result<(), StoreError> {
        for _ in 0..LISTINGS {
            let names = self.requests.list("checkpoint/").await?;
            let mut positions: Vec<u64> = names.iter().filter_map(|n| position_of(n)).collect();
            positions.sort_unstable();
            let newest = match positions.last().copied() {
                Some(newest) => newest,
                // The first entry of a writer is never deleted.
                None if self.entry(1).await?.is_none() => return self.write_first().await,
                None => {
                    rt::sleep(LISTING_PAUSE).await;
                    continue;
                }
            };
            let is_known = !self.checkpoints.borrow().is_empty();
            if is_known && newest <= self.state.borrow().position {
                return Ok(());
            }
            match self.requests.get(&checkpoint_name(newest), None).await {
                Ok(parts) => {
                    let checkpoint = decoded(&parts, Checkpoint::decode)?;
                    if checkpoint.position != newest {
                        return Err(misplaced(&checkpoint_name(newest)));
                    }
                    self.state.replace(State::restored(checkpoint));
                    self.base.set(newest);
                    positions.drain(..positions.len().saturating_sub(2));
                    self.checkpoints.replace(positions);
                    self.covered.take();
                    self.since.set((0, 0));
                    return Ok(());
                }
                // The listing lags behind: this one was deleted after newer ones were written.
                Err(StoreError::Missing) => rt::sleep(LISTING_PAUSE).await,
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Refused { text: "listings name no checkpoint that is there".to_owned() })
    }

    /// Fails unless nothing is stored below the prefix.
    async fn check_empty(&self) -> Result<(), StoreError> {
        let names = self.requests.list("").await?;
        match names.first() {
            None => Ok(()),
            Some(name) => {
                let text = format!("it has objects of something else there, such as '{name}'");
                Err(StoreError::Refused { text })
            }
        }
    }

    /// Applies what others have appended. What this process appends, the appending task applies.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        let now = rt::now();
        let is_last = self.is_last_writer();
        let is_fresh = self.looked_at.get().is_some_and(|at| now.since(at) < FRESH_SPAN);
        if is_fresh && !is_last {
            return Ok(());
        }
        let before = self.state.borrow().position;
        self.follow().await?;
        if self.state.borrow().position == before && !is_last {
            match self.formatted.get() {
                // Entries that checkpoints cover are deleted: the next one may be gone.
                true => self.load().await?,
                false => self.find().await?,
            }
            self.follow().await?;
        }
        self.looked_at.set(Some(now));
        Ok(())
    }

    /// As [`Chain::refresh`], also when the chain was looked at just before.
    pub async fn refresh_now(&self) -> Result<(), StoreError> {
        self.looked_at.set(None);
        self.refresh().await
    }

    /// Applies the entries after the last one that is known.
    async fn follow(&self) -> Result<(), StoreError> {
        let mut ahead = 1;
        loop {
            let first = self.state.borrow().position + 1;
            let entries = (first..first + ahead).map(|position| self.entry(position));
            for entry in rt::join_all(entries).await {
                let Some((entry, bytes)) = entry? else { return Ok(()) };
                if entry.writer == self.writer {
                    return Ok(());
                }
                self.apply(&entry, bytes);
            }
            ahead = ENTRIES_AHEAD;
        }
    }

    /// An entry, with its length; `None` if there is none.
    async fn entry(&self, position: u64) -> Result<Option<(Entry, usize)>, StoreError> {
        match self.requests.get(&entry_name(position), None).await {
            Ok(parts) => {
                let entry = decoded(&parts, Entry::decode)?;
                let bytes = parts.iter().map(|part| part.len()).sum();
                match entry.position == position {
                    true => Ok(Some((entry, bytes))),
                    false => Err(misplaced(&entry_name(position))),
                }
            }
            Err(StoreError::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Applies an entry, unless another task has done so.
    fn apply(&self, entry: &Entry, bytes: usize) {
        let mut state = self.state.borrow_mut();
        if entry.position != state.position + 1 {
            return;
        }
        state.apply(entry);
        if entry.writer != self.writer {
            // Its writer deletes what it does not need any more.
            state.extents.take_unused();
        }
        if entry.previous == entry.writer {
            self.covered.borrow_mut().push(entry.position);
        }
        let (entries, total) = self.since.get();
        self.since.set((entries + 1, total + bytes as u64));
    }

    /// Appends the changes that `decide` asks for in view of the state; none if it asks for none.
    /// The caller holds `appending`.
    pub async fn append(
        self: &Rc<Self>,
        operation: Operation,
        decide: impl Fn(&State) -> Result<Vec<Record>, ErrorKind>,
    ) -> Result<(), DeviceError> {
        let refused = |kind| DeviceError::new(self.requests.name(), operation, 0, 0, kind);
        if !self.formatted.get() {
            self.format().await.map_err(|error| self.failed(operation, error))?;
        }
        if !self.is_fenced.get() {
            self.check_fence().await.map_err(|error| self.failed(operation, error))?;
            self.is_fenced.set(true);
            self.present_at.set(Some(rt::now()));
        }
        self.check_presence().await.map_err(|error| self.failed(operation, error))?;
        loop {
            let records = decide(&self.state.borrow()).map_err(refused)?;
            if records.is_empty() {
                return Ok(());
            }
            let entry = {
                let state = self.state.borrow();
                let (position, previous) = (state.position + 1, state.writer);
                Entry { position, writer: self.writer, previous, host: self.host, records }
            };
            let put = self.put(&entry).await;
            match put.map_err(|error| self.failed(operation, error))? {
                // The first entry after one's own is never deleted, so it would have been met.
                None if entry.previous == self.writer => {
                    self.checkpoint_if_due();
                    return Ok(());
                }
                None => {
                    let is_last = self.has_base().await;
                    if is_last.map_err(|error| self.failed(operation, error))? {
                        self.has_appended.set(true);
                        return Ok(());
                    }
                }
                Some(other) => {
                    // A late request of an earlier process of this machine: what was read of the
                    // device before is not what it has now.
                    if other.host == self.host && !self.has_appended.get() {
                        return Err(refused(ErrorKind::Overtaken));
                    }
                    // To the end at once: an owner that goes on is not overtaken step by step.
                    self.follow().await.map_err(|error| self.failed(operation, error))?;
                }
            }
        }
    }

    /// Puts an entry at its place. Returns the one that has the place already.
    async fn put(&self, entry: &Entry) -> Result<Option<Entry>, StoreError> {
        let bytes = entry.encode();
        let name = entry_name(entry.position);
        loop {
            match self.requests.put(&name, vec![io_bytes(&bytes)], true).await {
                Ok(()) => break,
                Err(StoreError::Exists) => {}
                Err(error) => return Err(error),
            }
            match self.entry(entry.position).await? {
                // An earlier attempt had its effect without an answer.
                Some((found, _)) if found == *entry => break,
                Some((found, bytes)) => {
                    self.apply(&found, bytes);
                    return Ok(Some(found));
                }
                // S3 answers so while another request for the same place is under way.
                None => {}
            }
        }
        self.apply(entry, bytes.len());
        Ok(None)
    }

    /// Whether the place of an entry after one of another writer was the end of the chain. If that
    /// writer had gone on and deleted entries there, it had deleted the checkpoint before them
    /// first. Reads the device again if so.
    async fn has_base(&self) -> Result<bool, StoreError> {
        match self.requests.get(&checkpoint_name(self.base.get()), Some(0..1)).await {
            Ok(_) => Ok(true),
            Err(StoreError::Missing) => {
                self.checkpoints.take();
                self.load().await?;
                self.follow().await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the first objects of a new device, unless another machine does.
    async fn format(&self) -> Result<(), StoreError> {
        let bytes = self.state.borrow().checkpoint().encode();
        match self.requests.put(DEVICE_NAME, vec![io_bytes(&bytes)], true).await {
            Ok(()) | Err(StoreError::Exists) => self.find().await,
            Err(error) => Err(error),
        }
    }

    /// Fails unless the store refuses a second object of one name. All that keeps a machine out
    /// that was replaced rests on this.
    async fn check_fence(&self) -> Result<(), StoreError> {
        // A store that takes it has the same bytes then.
        let bytes = State::empty(self.state.borrow().size_bytes).checkpoint().encode();
        match self.requests.put(DEVICE_NAME, vec![io_bytes(&bytes)], true).await {
            Err(StoreError::Exists) => Ok(()),
            Ok(()) => {
                let text = "the store takes a second object of one name (it ignores \
                            If-None-Match), so that two machines could have the pool at once; \
                            use a store with conditional puts"
                    .to_owned();
                Err(StoreError::Refused { text })
            }
            Err(error) => Err(error),
        }
    }

    /// Fails if the device's first object is gone: another, empty bucket takes the place of the one
    /// that was opened, and would take entries without what they follow.
    async fn check_presence(&self) -> Result<(), StoreError> {
        let now = rt::now();
        if self.present_at.get().is_some_and(|at| now.since(at) < PRESENCE_INTERVAL) {
            return Ok(());
        }
        match self.requests.get(DEVICE_NAME, Some(0..1)).await {
            Ok(_) => {
                self.present_at.set(Some(now));
                Ok(())
            }
            Err(StoreError::Missing) => Err(StoreError::Lost { object: DEVICE_NAME.to_owned() }),
            Err(error) => Err(error),
        }
    }

    /// Writes the checkpoint of an empty device: what wrote the device did not get that far.
    async fn write_first(&self) -> Result<(), StoreError> {
        let size_bytes = self.state.borrow().size_bytes;
        let bytes = State::empty(size_bytes).checkpoint().encode();
        match self.requests.put(&checkpoint_name(0), vec![io_bytes(&bytes)], true).await {
            Ok(()) | Err(StoreError::Exists) => {
                self.base.set(0);
                self.checkpoints.replace(vec![0]);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn checkpoint_if_due(self: &Rc<Self>) {
        let (entries, bytes) = self.since.get();
        let is_due = entries >= CHECKPOINT_ENTRIES || bytes >= CHECKPOINT_BYTES;
        if is_due && !self.checkpointing.replace(true) {
            let chain = self.clone();
            rt::spawn_detached(Box::pin(async move {
                // Without it the next opening reads more entries.
                let _ = chain.checkpoint().await;
                chain.checkpointing.set(false);
            }));
        }
    }

    /// Writes a checkpoint, and deletes what the one before it covers.
    async fn checkpoint(&self) -> Result<(), StoreError> {
        let (position, bytes) = {
            let state = self.state.borrow();
            (state.position, state.checkpoint().encode())
        };
        self.since.set((0, 0));
        match self.requests.put(&checkpoint_name(position), vec![io_bytes(&bytes)], true).await {
            Ok(()) | Err(StoreError::Exists) => {}
            Err(error) => return Err(error),
        }
        // A listing that lags shows the older of two, from which entries lead on.
        let mut kept = self.checkpoints.borrow().clone();
        kept.push(position);
        let old: Vec<u64> = kept.drain(..kept.len().saturating_sub(2)).collect();
        // Entries go after the checkpoint before them, so that no machine takes the first of them
        // that is gone for the end of the chain (see `has_base`).
        self.requests.delete(old.into_iter().map(checkpoint_name).collect()).await?;
        let oldest = kept[0];
        // All after it is known here, and is not deleted while it is there.
        self.base.set(oldest);
        self.checkpoints.replace(kept);
        let covered: Vec<u64> = {
            let mut covered = self.covered.borrow_mut();
            let count = covered.partition_point(|entry| *entry <= oldest);
            covered.drain(..count).collect()
        };
        self.requests.delete(covered.into_iter().map(entry_name).collect()).await
    }

    /// Deletes what a crash or an earlier owner has left behind: objects that no entry names, and
    /// entries and checkpoints that newer checkpoints cover. Only while this machine alone may
    /// write.
    pub async fn sweep(&self) -> Result<(), StoreError> {
        let is_alone = |state: &State| {
            state.holder() == Some(self.host) && state.reservations().keys.len() == 1
        };
        let objects = self.requests.list("data/").await?;
        // Another machine may have taken the device before the store made the list: the list has
        // what that machine has stored, and the state as it was before does not.
        self.refresh_now().await?;
        if !is_alone(&self.state.borrow()) {
            return Ok(());
        }
        let is_left = |name: &&String| {
            let id = ObjectId::parse(name);
            id.is_some_and(|id| id.writer != self.writer && !self.state.borrow().extents.holds(id))
        };
        self.requests.delete(objects.iter().filter(is_left).cloned().collect()).await?;
        let oldest = self.checkpoints.borrow().first().copied().unwrap_or(0);
        let checkpoints = self.requests.list("checkpoint/").await?;
        let is_old = |name: &&String| position_of(name).is_some_and(|position| position < oldest);
        // Before the entries, as in `checkpoint`.
        self.requests.delete(checkpoints.iter().filter(is_old).cloned().collect()).await?;
        let mut covered = Vec::new();
        for name in self.requests.list("chain/").await? {
            let Some(position) = position_of(&name).filter(|position| *position <= oldest) else {
                continue;
            };
            let entry = self.entry(position).await?;
            if entry.is_some_and(|(entry, _)| entry.previous == entry.writer) {
                covered.push(name);
            }
        }
        self.requests.delete(covered).await
    }
}

/// Bytes for a request.
pub(crate) fn io_bytes(bytes: &[u8]) -> IoBytes {
    IoBuf::copy_of(bytes).freeze()
}

fn decoded<T>(
    parts: &[IoBytes],
    decode: impl Fn(&[u8]) -> Result<T, FormatError>,
) -> Result<T, StoreError> {
    let bytes = parts.iter().map(|part| &part[..]).collect::<Vec<_>>().concat();
    decode(&bytes).map_err(|error| StoreError::Refused { text: error.to_string() })
}

fn misplaced(name: &str) -> StoreError {
    StoreError::Refused { text: format!("the object '{name}' is one of another name") }
}
