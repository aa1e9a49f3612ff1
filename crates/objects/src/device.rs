//! The block device: reads, writes, flushes and reservations over a chain.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{
    BlockDevice, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes, ObjectStats,
    Operation, ReservationChange, Reservations, check_range,
};
use forebay_format::objects::{Extent, ObjectId, PAGE_BYTES, Record};
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Nanos};

use crate::chain::Chain;
use crate::failed;
use crate::pending::{Batch, Pending, Put};
use crate::requests::Requests;
use crate::state::State;
use crate::store::{Store, StoreError};

/// Blocks at both ends of the device that the chain has itself: pools have their labels there.
const LABEL_BLOCKS: u64 = 256;
/// How long a discard waits for a flush. Without one it is recorded then: a pool that has nothing
/// more to write would never give its space back. One that writes flushes earlier, and its objects
/// are not cut short.
const DISCARD_SPAN: Nanos = Nanos::from_secs(10);
/// Bytes that wait in memory for their objects to be stored; further writes wait. Eight objects of
/// the largest size: what one request cannot carry, several do.
const MEMORY_MAX_BYTES: u64 = 128 << 20;

/// A block device whose content is in an object store.
pub struct ObjectDevice {
    inner: Rc<Inner>,
}

struct Inner {
    chain: Rc<Chain>,
    pending: RefCell<Pending>,
    /// Objects were stored, or the device failed.
    stored: Rc<Notify>,
    /// A task will record discards.
    records_discards: Cell<bool>,
}

/// Blocks that could not be read: the first, how many, and why.
type Unread = (u64, u64, StoreError);

impl ObjectDevice {
    /// Opens the device that `store` has. A store without one gets a device of `new_size_bytes`
    /// with the first write. `host` tells this machine from others.
    pub async fn open(
        store: Rc<dyn Store>,
        host: u64,
        new_size_bytes: u64,
    ) -> Result<Rc<Self>, DeviceError> {
        Self::open_at(store, host, new_size_bytes, None).await
    }

    /// As [`ObjectDevice::open`]. Fails with what the store said last once `at_most` has passed,
    /// and within seconds if no connection to it can be made. A store that has said nothing is
    /// waited for.
    pub async fn open_within(
        store: Rc<dyn Store>,
        host: u64,
        new_size_bytes: u64,
        at_most: Nanos,
    ) -> Result<Rc<Self>, DeviceError> {
        Self::open_at(store, host, new_size_bytes, Some(at_most)).await
    }

    async fn open_at(
        store: Rc<dyn Store>,
        host: u64,
        new_size_bytes: u64,
        at_most: Option<Nanos>,
    ) -> Result<Rc<Self>, DeviceError> {
        let chain = Chain::open(Requests::new(store), host, new_size_bytes, at_most).await?;
        let pending = RefCell::new(Pending::new(chain.writer));
        let (stored, records_discards) = (Notify::new(), Cell::new(false));
        Ok(Rc::new(Self { inner: Rc::new(Inner { chain, pending, stored, records_discards }) }))
    }

    /// Requests and bytes since it was opened, and what the store has of it.
    #[must_use]
    pub fn stats(&self) -> ObjectStats {
        self.inner.stats()
    }
}

impl Inner {
    fn stats(&self) -> ObjectStats {
        let state = self.chain.state.borrow();
        ObjectStats {
            objects: state.extents.objects().len() as u64,
            stored_bytes: state.extents.stored_blocks() * BLOCK_BYTES,
            waiting_bytes: self.pending.borrow().memory_bytes,
            ..self.chain.requests.stats()
        }
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.chain.state.borrow().size_bytes,
            block_bytes: BLOCK_BYTES as u32,
            volatile_cache: true,
            discard_bytes: BLOCK_BYTES as u32,
            read_only: false,
        }
    }

    /// First block and number of blocks of a range that the device has.
    fn blocks_of(
        &self,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<(u64, u64), DeviceError> {
        let name = self.chain.requests.name();
        check_range(name, &self.geometry(), operation, offset_bytes, len_bytes)?;
        Ok((offset_bytes / BLOCK_BYTES, len_bytes / BLOCK_BYTES))
    }

    /// Whether the chain has the content of a block itself.
    fn is_page(&self, block: u64) -> bool {
        let blocks = self.chain.state.borrow().size_bytes / BLOCK_BYTES;
        block < LABEL_BLOCKS || block >= blocks.saturating_sub(LABEL_BLOCKS)
    }

    /// The parts of a range that are pages or are not: first block, blocks, and which.
    fn parts_of(&self, first_block: u64, blocks: u64) -> Vec<(u64, u64, bool)> {
        let end = first_block + blocks;
        let last =
            (self.chain.state.borrow().size_bytes / BLOCK_BYTES).saturating_sub(LABEL_BLOCKS);
        let mut cuts = vec![first_block];
        cuts.extend(
            [LABEL_BLOCKS, last].into_iter().filter(|cut| (first_block + 1..end).contains(cut)),
        );
        cuts.push(end);
        let ranges = cuts.windows(2).map(|cut| (cut[0], cut[1] - cut[0], self.is_page(cut[0])));
        ranges.filter(|(_, blocks, _)| *blocks > 0).collect()
    }

    /// Fails once the device takes no more writes.
    fn check_health(&self, operation: Operation) -> Result<(), DeviceError> {
        match &self.pending.borrow().failure {
            Some(failure) => Err(self.chain.failed(operation, failure.clone())),
            None => Ok(()),
        }
    }

    async fn read(&self, offset_bytes: u64, mut buf: IoBuf) -> Result<IoBuf, DeviceError> {
        let (first, blocks) = self.blocks_of(Operation::Read, offset_bytes, buf.len() as u64)?;
        let mut rest = &mut buf[..];
        for (first, blocks, is_page) in self.parts_of(first, blocks) {
            let (part, after) = rest.split_at_mut(blocks as usize * BLOCK_LEN);
            rest = after;
            match is_page {
                true => self.read_pages(first, part).await.map_err(|error| (first, blocks, error)),
                false => self.read_blocks(first, blocks, part).await,
            }
            .map_err(|(first, blocks, error)| {
                let (name, len_bytes) = (self.chain.requests.name(), blocks * BLOCK_BYTES);
                failed(name, Operation::Read, first * BLOCK_BYTES, len_bytes, error)
            })?;
        }
        Ok(buf)
    }

    /// Labels are read as they are now: another machine may have written them.
    async fn read_pages(&self, first_block: u64, out: &mut [u8]) -> Result<(), StoreError> {
        self.chain.refresh().await?;
        let (state, pending) = (self.chain.state.borrow(), self.pending.borrow());
        // What a machine that was replaced has not recorded yet never will be.
        let may_write = state.may_write(self.chain.host);
        for (block, out) in (first_block..).zip(out.chunks_mut(PAGE_BYTES)) {
            let known = state.pages.get(&block).map(|bytes| &bytes[..]);
            match pending.page(block).filter(|_| may_write).or(known) {
                Some(bytes) => out.copy_from_slice(bytes),
                None => out.fill(0),
            }
        }
        Ok(())
    }

    async fn read_blocks(
        &self,
        first_block: u64,
        blocks: u64,
        out: &mut [u8],
    ) -> Result<(), Unread> {
        loop {
            let places = self.places(first_block, blocks);
            let outcome = self.read_objects(first_block, &places, out).await;
            if !matches!(outcome, Err((.., StoreError::Lost { .. }))) {
                return outcome;
            }
            // Another machine may have freed the object since this one last looked.
            if !self.chain.is_last_writer() {
                let refreshed = self.chain.refresh_now().await;
                refreshed.map_err(|error| (first_block, blocks, error))?;
            }
            // This one may have, too: with what was discarded or written over meanwhile.
            if self.places(first_block, blocks) == places {
                return outcome;
            }
        }
    }

    /// Where the blocks of a range are, in order, and which of them the chain does not have yet.
    fn places(&self, first_block: u64, blocks: u64) -> Vec<(Extent, bool)> {
        let (state, pending) = (self.chain.state.borrow(), self.pending.borrow());
        let recorded = |from: u64, to: u64| {
            state.extents.lookup(from, to - from).into_iter().map(|extent| (extent, false))
        };
        let (mut places, mut next) = (Vec::new(), first_block);
        for extent in pending.lookup(first_block, blocks) {
            places.extend(recorded(next, extent.first_block));
            next = extent.first_block + u64::from(extent.blocks);
            places.push((extent, true));
        }
        places.extend(recorded(next, first_block + blocks));
        places
    }

    async fn read_objects(
        &self,
        first_block: u64,
        places: &[(Extent, bool)],
        out: &mut [u8],
    ) -> Result<(), Unread> {
        out.fill(0);
        let mut wanted = Vec::new();
        for (extent, is_pending) in places {
            let out = &mut out[range_in(extent, first_block)];
            if !(*is_pending && self.pending.borrow().copy(extent, out)) {
                wanted.push(*extent);
            }
        }
        let gets = wanted.iter().map(|extent| self.get(extent));
        for (extent, parts) in wanted.iter().zip(rt::join_all(gets).await) {
            let unread = |error| (extent.first_block, u64::from(extent.blocks), error);
            let out = &mut out[range_in(extent, first_block)];
            let mut done = 0;
            for part in parts.map_err(unread)? {
                let len = part.len().min(out.len() - done);
                out[done..done + len].copy_from_slice(&part[..len]);
                done += len;
            }
            if done < out.len() {
                let text = format!("{} is shorter than it was", extent.object.name());
                return Err(unread(StoreError::Refused { text }));
            }
        }
        Ok(())
    }

    /// The blocks of an extent. An object that an entry names was stored before.
    async fn get(&self, extent: &Extent) -> Result<Vec<IoBytes>, StoreError> {
        let from = u64::from(extent.at) * BLOCK_BYTES;
        let bytes = from..from + u64::from(extent.blocks) * BLOCK_BYTES;
        let object = extent.object.name();
        match self.chain.requests.get(&object, Some(bytes)).await {
            Err(StoreError::Missing) => Err(StoreError::Lost { object }),
            other => other,
        }
    }

    async fn write(
        self: Rc<Self>,
        offset_bytes: u64,
        data: IoBytes,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let op = Operation::Write;
        let (first, blocks) = self.blocks_of(op, offset_bytes, data.len() as u64)?;
        let mut has_body = false;
        for (part, blocks, is_page) in self.parts_of(first, blocks) {
            let at = ((part - first) * BLOCK_BYTES) as usize;
            let data = data.slice(at, blocks as usize * BLOCK_LEN);
            if is_page {
                self.check_health(op)?;
                let mut pending = self.pending.borrow_mut();
                for (block, bytes) in (part..).zip(data.chunks(PAGE_BYTES)) {
                    pending.write_page(block, bytes);
                }
                continue;
            }
            has_body = true;
            self.write_blocks(part, data).await?;
        }
        if fua {
            self.sync(op, has_body).await?;
        }
        Ok(())
    }

    async fn write_blocks(self: &Rc<Self>, first: u64, data: IoBytes) -> Result<(), DeviceError> {
        let bytes = data.len() as u64;
        loop {
            self.check_health(Operation::Write)?;
            let waiting = self.pending.borrow().memory_bytes;
            if waiting == 0 || waiting + bytes <= MEMORY_MAX_BYTES {
                break;
            }
            let stored = self.stored.notified();
            // Objects on their way give memory back. One that more may follow is cut short only
            // when none is on its way: small objects cost as many requests as large ones.
            if !self.pending.borrow().is_storing() {
                let longest = self.pending.borrow_mut().close_longest();
                longest.into_iter().for_each(|put| self.put(put));
            }
            stored.await;
        }
        let full = self.pending.borrow_mut().write(first, data);
        full.into_iter().for_each(|put| self.put(put));
        Ok(())
    }

    /// Begins to store all runs.
    fn put_runs(self: &Rc<Self>) {
        let puts = self.pending.borrow_mut().close_all();
        puts.into_iter().for_each(|put| self.put(put));
    }

    fn put(self: &Rc<Self>, put: Put) {
        let inner = self.clone();
        rt::spawn_detached(Box::pin(async move {
            let name = put.id.name();
            let outcome = inner.chain.requests.put(&name, put.parts.clone(), false).await;
            match outcome {
                Ok(()) => inner.pending.borrow_mut().is_stored(&put),
                Err(error) => inner.fail(error),
            }
            inner.stored.notify_all();
        }));
    }

    fn fail(&self, error: StoreError) {
        self.pending.borrow_mut().failure.get_or_insert(error);
        self.stored.notify_all();
    }

    /// Makes what was written so far durable: pages, and with `body` everything else. A task of its
    /// own does it: the next flush answers for what this one has taken, also when its caller has
    /// gone.
    async fn sync(self: &Rc<Self>, op: Operation, body: bool) -> Result<(), DeviceError> {
        let inner = self.clone();
        rt::spawn(async move { inner.take_and_record(op, body).await }).await
    }

    async fn take_and_record(
        self: &Rc<Self>,
        op: Operation,
        body: bool,
    ) -> Result<(), DeviceError> {
        let wanted = self.pending.borrow().seq;
        // What is written in the same instant shares an entry.
        rt::yield_now().await;
        let guard = self.chain.appending.lock().await;
        self.check_health(op)?;
        let (pages, others) = self.pending.borrow().recorded;
        if (if body { others.min(pages) } else { pages }) >= wanted {
            return Ok(());
        }
        if body {
            self.put_runs();
        }
        let batch = self.pending.borrow_mut().take(body);
        let all_stored = || {
            let pending = self.pending.borrow();
            pending.failure.is_some() || pending.has_stored(&batch)
        };
        self.stored.until(all_stored).await;
        self.check_health(op)?;
        let recorded = self.record(op, batch).await;
        drop(guard);
        recorded
    }

    async fn record(self: &Rc<Self>, op: Operation, batch: Batch) -> Result<(), DeviceError> {
        let decide = |state: &State| match state.may_write(self.chain.host) {
            true => Ok(batch.records.clone()),
            false => Err(ErrorKind::ReservationConflict),
        };
        if let Err(error) = self.chain.append(op, decide).await {
            let text = error.to_string();
            // Nothing that was to be durable may seem so later.
            if error.kind != ErrorKind::ReservationConflict {
                self.fail(StoreError::Refused { text });
            }
            return Err(error);
        }
        self.pending.borrow_mut().is_recorded(&batch);
        let unused = self.chain.state.borrow_mut().extents.take_unused();
        if !unused.is_empty() {
            let chain = self.chain.clone();
            rt::spawn_detached(Box::pin(async move {
                // What stays is deleted when the device is next taken.
                let names = unused.iter().map(ObjectId::name).collect();
                let _ = chain.requests.delete(names).await;
            }));
        }
        Ok(())
    }

    async fn discard(
        self: Rc<Self>,
        offset_bytes: u64,
        len_bytes: u64,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let op = Operation::Discard;
        let (first, blocks) = self.blocks_of(op, offset_bytes, len_bytes)?;
        self.check_health(op)?;
        for (part, blocks, is_page) in self.parts_of(first, blocks) {
            let mut pending = self.pending.borrow_mut();
            match is_page {
                true => (part..part + blocks).for_each(|block| {
                    pending.write_page(block, &[0; PAGE_BYTES]);
                }),
                false => pending.discard(part, blocks),
            }
        }
        if fua {
            return self.sync(op, true).await;
        }
        self.record_discards_soon();
        Ok(())
    }

    fn record_discards_soon(self: &Rc<Self>) {
        if self.records_discards.replace(true) {
            return;
        }
        let wanted = self.pending.borrow().seq;
        // A device that is closed meanwhile must not be kept open.
        let inner = Rc::downgrade(self);
        rt::spawn_detached(Box::pin(async move {
            rt::sleep(DISCARD_SPAN).await;
            let Some(inner) = inner.upgrade() else { return };
            inner.records_discards.set(false);
            if inner.pending.borrow().recorded.1 < wanted {
                // A failure stays with the device, and the next write meets it.
                let _ = inner.sync(Operation::Discard, true).await;
            } else if inner.pending.borrow().has_discards() {
                inner.record_discards_soon();
            }
        }));
    }

    async fn change_reservations(
        self: Rc<Self>,
        change: ReservationChange,
    ) -> Result<(), DeviceError> {
        let op = Operation::Reservation;
        let host = self.chain.host;
        let guard = self.chain.appending.lock().await;
        let refreshed = self.chain.refresh().await;
        refreshed.map_err(|error| self.chain.failed(op, error))?;
        self.chain.append(op, |state| reservation_record(state, host, change)).await?;
        drop(guard);
        if matches!(change, ReservationChange::Reserve { .. } | ReservationChange::Preempt { .. }) {
            let chain = self.chain.clone();
            rt::spawn_detached(Box::pin(async move {
                // What is not found now is found when the device is next taken.
                let _ = chain.sweep().await;
            }));
        }
        Ok(())
    }
}

/// The record of a change of reservations, if the machine may make it.
fn reservation_record(
    state: &State,
    host: u64,
    change: ReservationChange,
) -> Result<Vec<Record>, ErrorKind> {
    let conflict = Err(ErrorKind::ReservationConflict);
    let own = state.key_of(host);
    Ok(vec![match change {
        ReservationChange::Register { key } => Record::Register { key: key.0 },
        ReservationChange::Unregister { key }
        | ReservationChange::Reserve { key }
        | ReservationChange::Preempt { key, .. }
        | ReservationChange::Clear { key }
            if own != Some(key.0) =>
        {
            return conflict;
        }
        ReservationChange::Unregister { .. } => Record::Unregister,
        ReservationChange::Reserve { .. } => match state.holder() {
            None => Record::Reserve,
            Some(holder) if holder == host => return Ok(Vec::new()),
            Some(_) => return conflict,
        },
        ReservationChange::Preempt { victim, .. } if state.has_key(victim.0) => {
            Record::Preempt { victim: victim.0 }
        }
        ReservationChange::Preempt { .. } => return conflict,
        ReservationChange::Clear { .. } => Record::Clear,
    }])
}

/// The bytes of an extent in a read that begins at `first_block`.
fn range_in(extent: &Extent, first_block: u64) -> std::ops::Range<usize> {
    let from = (extent.first_block - first_block) as usize * BLOCK_LEN;
    from..from + extent.blocks as usize * BLOCK_LEN
}

impl BlockDevice for ObjectDevice {
    fn name(&self) -> &str {
        self.inner.chain.requests.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(self.inner.read(offset_bytes, buf))
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(self.inner.clone().write(offset_bytes, data, fua))
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(self.inner.sync(Operation::Flush, true))
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(self.inner.clone().discard(offset_bytes, len_bytes, fua))
    }

    fn reservations(&self) -> DeviceFuture<'_, Reservations> {
        Box::pin(async move {
            let refreshed = self.inner.chain.refresh().await;
            refreshed.map_err(|error| self.inner.chain.failed(Operation::Reservation, error))?;
            Ok(self.inner.chain.state.borrow().reservations())
        })
    }

    fn change_reservations(&self, change: ReservationChange) -> DeviceFuture<'_, ()> {
        Box::pin(self.inner.clone().change_reservations(change))
    }

    fn abandon(&self) {
        self.inner.chain.requests.abandon();
    }

    fn objects(&self) -> Option<ObjectStats> {
        Some(self.inner.stats())
    }
}
