//! Being the only owner: the heartbeat, and the fence before every write.
//!
//! Locks keep two processes of one machine apart. Between machines there is the heartbeat: who imports
//! watches it for four seconds. An owner that was stopped meanwhile (a paused machine, SIGSTOP) and goes
//! on knows nothing of that, and its timers have all run out: it would write a whole group over what
//! the new owner has put there. So nobody writes who has not looked at the heartbeat for three seconds
//! of a clock that a suspended machine's time is part of; such writes wait until it has been looked at,
//! and fail if it is another's. Neither does a write count that was under way meanwhile: the kernel may
//! have held it until after the new owner had read the log.
//!
//! Devices that do not answer are passed over: there are others to look at and to beat on, log devices
//! last. An owner that none of them answers is not sure, and silent for others as well. An import is fenced
//! from its first look on, and its mark renewed in the same way.
//!
//! One beat of the old owner may have been on its way when it stopped, and land over the new owner's
//! mark. The new owner knows whose mark it replaced: it takes that one for what it is and beats on. The
//! old one finds the new mark on the other devices, or, where there is but one, at a second look.
//!
//! That such a write reaches the device late is beyond this: only a device that refuses its old owner (a
//! reservation) could stop it.

mod looks;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_device::{
    Allocation, BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf,
    IoBytes, Operation, ZeroOptions,
};
use forebay_format::config::MemberUse;
use forebay_format::label::Heartbeat;
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::{DeviceId, Nanos};

use crate::labels::{OpenDevice, Opener, look_for_beat, read_beat, write_beat};
use crate::placing::Found;
use crate::spec::ImportOptions;
use crate::{Pool, PoolError};
use looks::Looks;

/// How long an import watches for the beats of another owner, and after its own first mark waits for
/// one that has come back: that one looks, finds the mark and stops.
pub(crate) const WATCH: Nanos = Nanos::from_secs(4);
/// How long a look at the heartbeat counts: less than [`WATCH`], so that the old owner has stopped
/// writing before the new one begins.
const TRUST: Nanos = Nanos::from_secs(3);
const BEAT_EVERY: Nanos = Nanos::from_secs(1);
/// After this another owner has beaten again.
const BEATEN_AGAIN: Nanos = Nanos::from_millis(1500);

/// The clock by which a look grows old: a machine that was suspended has been away, too. (Deadlines of
/// devices must not count that: all would have passed when it wakes up.)
fn clock() -> Nanos {
    rt::now_with_suspension()
}

/// What a pool knows about being its devices' only owner.
pub(crate) struct Possession {
    /// When it was last known. Nothing for whoever creates a pool, and before an import has left its mark:
    /// nothing is there yet that could be lost.
    known_at: Cell<Option<Nanos>>,
    lost: Cell<bool>,
    changed: Rc<Notify>,
    /// Whose marks this owner replaced when it came.
    before: RefCell<Vec<u64>>,
    looks: Rc<Looks>,
}

impl Possession {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            known_at: Cell::new(None),
            lost: Cell::new(false),
            changed: Notify::new(),
            before: RefCell::default(),
            looks: Looks::new(),
        })
    }

    /// These owners came before: their marks mean nothing any more.
    pub(crate) fn follow(&self, nonces: Vec<u64>) {
        *self.before.borrow_mut() = nonces;
    }

    fn came_before(&self, nonce: u64) -> bool {
        self.before.borrow().contains(&nonce)
    }

    fn is_sure(&self) -> bool {
        self.known_at.get().is_none_or(|at| clock().since(at) <= TRUST)
    }

    /// Waits until it is known who the owner is: an error when it is another.
    async fn settled(&self) -> Result<(), ()> {
        self.changed.until(|| self.lost.get() || self.is_sure()).await;
        if self.lost.get() { Err(()) } else { Ok(()) }
    }

    /// The heartbeat was looked at, at `at` or later, and was ours.
    fn renew(&self, at: Nanos) {
        let before = self.known_at.get().unwrap_or(Nanos::ZERO);
        self.known_at.set(Some(before.max(at)));
        self.changed.notify_all();
    }

    /// The heartbeat ends.
    fn end(&self) {
        self.known_at.set(None);
        self.changed.notify_all();
    }

    fn lose(&self) {
        self.lost.set(true);
        self.changed.notify_all();
    }
}

/// An opener whose devices ask before they write.
pub(crate) fn fence(inner: Rc<dyn Opener>) -> (Rc<dyn Opener>, Rc<Possession>) {
    let possession = Possession::new();
    (Rc::new(FencedOpener { inner, possession: possession.clone() }), possession)
}

struct FencedOpener {
    inner: Rc<dyn Opener>,
    possession: Rc<Possession>,
}

impl Opener for FencedOpener {
    fn open(&self, path: &str) -> Result<Device, DeviceError> {
        let inner = self.inner.open(path)?;
        Ok(Rc::new(Fenced { inner, possession: self.possession.clone() }))
    }

    fn host(&self) -> u64 {
        self.inner.host()
    }

    fn witness(&self, pool: u64, generation: u64) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        self.inner.witness(pool, generation)
    }

    fn is_unwanted(&self) -> bool {
        self.inner.is_unwanted()
    }
}

struct Fenced {
    inner: Device,
    possession: Rc<Possession>,
}

impl Fenced {
    fn guarded<'a>(
        &'a self,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
        call: impl FnOnce() -> DeviceFuture<'a, ()> + 'a,
    ) -> DeviceFuture<'a, ()> {
        Box::pin(async move {
            let another = |()| {
                let detail = "another process has imported the pool".to_owned();
                let kind = ErrorKind::Other { detail };
                DeviceError::new(self.name(), operation, offset_bytes, len_bytes, kind)
            };
            self.possession.settled().await.map_err(another)?;
            call().await?;
            // The kernel may have held it while this process stood still, and have written it after
            // a new owner had read what counts.
            self.possession.settled().await.map_err(another)
        })
    }
}

impl BlockDevice for Fenced {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn allocates_on_write(&self) -> bool {
        self.inner.allocates_on_write()
    }
    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        self.inner.read(offset_bytes, buf)
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let len = data.len() as u64;
        let call = move || self.inner.write(offset_bytes, data, fua);
        self.guarded(Operation::Write, offset_bytes, len, call)
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        self.inner.flush()
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        let call = move || self.inner.discard(offset_bytes, len_bytes, fua);
        self.guarded(Operation::Discard, offset_bytes, len_bytes, call)
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        let call = move || self.inner.write_zeroes(offset, len, options);
        self.guarded(Operation::WriteZeroes, offset, len, call)
    }
    fn allocation(&self, offset: u64, len: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        self.inner.allocation(offset, len)
    }
}

/// Refuses a pool that another machine imports, or has imported and not exported; in the latter case
/// (`elsewhere`) even when that machine is silent, unless the operator says so. (On one machine the
/// devices' locks do.)
pub(crate) async fn check_not_in_use(
    found: &[&Found],
    name: &str,
    elsewhere: bool,
    options: &ImportOptions,
) -> Result<(), PoolError> {
    let before = beats(found).await;
    rt::sleep(WATCH).await;
    let after = beats(found).await;
    let moved = |(at, found): &(usize, &&Found)| {
        // A device that did not answer says nothing; its label was read a moment ago.
        let label = found.label.beat.as_ref().map(|beat| Some(beat.beat));
        before[*at].or(label).zip(after[*at]).is_some_and(|(then, now)| now != then)
    };
    if let Some((_, device)) = found.iter().enumerate().find(moved) {
        return Err(PoolError::new(format!(
            "pool '{name}' is imported on another machine and in use there (the heartbeat on {} \
             moves); export it there first",
            device.path
        )));
    }
    if elsewhere && !options.force && options.known.is_none() {
        return Err(PoolError::new(format!(
            "pool '{name}' was last used by another machine and not exported; that machine is \
             silent now: use -f to import it if you are sure that it is off"
        )));
    }
    Ok(())
}

/// Whether somebody has left a mark who has written no root: an import that is going on somewhere
/// else, or one that was cut short.
pub(crate) fn is_being_imported(found: &[&Found], pool: u64) -> bool {
    let nonces = known_nonces(found);
    let marks = found.iter().filter_map(|f| f.label.beat.as_ref());
    marks.filter(|beat| beat.pool == pool).any(|beat| !nonces.contains(&beat.nonce))
}

/// Who has written the roots that were found.
fn known_nonces(found: &[&Found]) -> BTreeSet<u64> {
    found.iter().flat_map(|found| &found.label.roots).map(|root| root.nonce).collect()
}

/// An import's mark on every device found. It beats until it is dropped, so that another machine
/// that looks sees that the pool is being imported.
pub(crate) struct Claim {
    holders: Rc<Holders>,
}

struct Holders {
    name: String,
    possession: Rc<Possession>,
    /// Empty from its end on: a device that leaves the pool is closed at once.
    devices: RefCell<Vec<Device>>,
    mine: Heartbeat,
    /// Whose marks lay there, and who has written roots.
    before: BTreeSet<u64>,
}

impl Claim {
    /// Refused, and nothing is written, when somebody else has left a mark since the labels were
    /// read.
    ///
    /// What the marks say of the log is kept: nothing else says it until the next root.
    pub async fn new(
        found: &[&Found],
        name: &str,
        possession: &Rc<Possession>,
        mine: Heartbeat,
    ) -> Result<Self, PoolError> {
        let mut mine = mine;
        let devices: Vec<Device> =
            found.iter().map(|found| found.deadline.clone() as Device).collect();
        // A device whose mark could not be read, or that is away now, may have what others have.
        let mut before = known_nonces(found);
        let beats = found.iter().filter_map(|found| found.label.beat.as_ref());
        before.extend(beats.filter(|beat| beat.pool == mine.pool).map(|beat| beat.nonce));
        let begun = clock();
        for device in &devices {
            let Some(held) = read_beat(device).await else { continue };
            if held.pool == mine.pool {
                if !before.contains(&held.nonce) {
                    return Err(taken(name));
                }
                mine.log = mine.log.max(held.log);
            }
        }
        possession.follow(before.iter().copied().collect());
        let (name, possession) = (name.to_owned(), possession.clone());
        let devices = RefCell::new(devices);
        let holders = Rc::new(Holders { name, possession, devices, mine, before });
        // Should time stand still from here on, another may come; from the first mark on it is looked for.
        holders.possession.renew(begun);
        rt::spawn_detached(Box::pin(holders.clone().go_on()));
        holders.beat(0).await;
        Ok(Self { holders })
    }

    /// Refused when somebody has left a mark over this one.
    pub async fn look(&self) -> Result<(), PoolError> {
        match self.holders.another().await {
            true => Err(taken(&self.holders.name)),
            false => Ok(()),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.holders.devices.borrow_mut().clear();
    }
}

impl Holders {
    async fn go_on(self: Rc<Self>) {
        for beat in 1.. {
            rt::sleep(BEAT_EVERY).await;
            let devices = self.devices.borrow().clone();
            let mut begun = clock();
            let after_gap = !self.possession.is_sure();
            let mut answers = self.possession.looks.look(&devices, true).await;
            if after_gap && answers.iter().filter(|answer| answer.asked_at >= begun).count() < 2 {
                // As below: the only mark there was may lie under a late one of ours.
                rt::sleep(BEATEN_AGAIN).await;
                begun = clock();
                answers.extend(self.possession.looks.look(&devices, true).await);
            }
            if self.has_ended() {
                return;
            }
            let mut held = answers.iter().filter_map(|answer| answer.held);
            // The mark of somebody else stays, and this import ends.
            if held.any(|held| self.is_another(&held)) {
                self.possession.lose();
                return;
            }
            let asked_at = answers.iter().map(|answer| answer.asked_at).max();
            // Where no mark can be read none can be left; roots will not be written either.
            let mute = self.possession.looks.is_answered();
            if let Some(at) = asked_at.or(mute.then_some(begun)) {
                self.possession.renew(at);
            }
            for answer in answers {
                let mark = Heartbeat { beat, ..self.mine };
                self.possession.looks.beat(answer.device, mark).await;
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.devices.borrow().is_empty()
    }

    async fn beat(&self, beat: u64) {
        let mark = Heartbeat { beat, ..self.mine };
        let devices = self.devices.borrow().clone();
        for device in &devices {
            // One that fails here fails the next root too, which deals with it.
            let _ = write_beat(device, &mark).await;
        }
    }

    async fn another(&self) -> bool {
        let devices = self.devices.borrow().clone();
        for device in &devices {
            if read_beat(device).await.is_some_and(|held| self.is_another(&held)) {
                return true;
            }
        }
        false
    }

    fn is_another(&self, held: &Heartbeat) -> bool {
        let known = held.nonce == self.mine.nonce || self.before.contains(&held.nonce);
        held.pool == self.mine.pool && !known
    }
}

fn taken(name: &str) -> PoolError {
    PoolError::new(format!(
        "pool '{name}' was taken by another machine meanwhile; export it there, or turn that \
         machine off and try again"
    ))
}

/// What the heartbeat on each device counts, `None` inside where there is none; outside where the
/// device does not answer.
async fn beats(found: &[&Found]) -> Vec<Option<Option<u64>>> {
    let mut beats = Vec::new();
    for found in found {
        let device: Device = found.deadline.clone();
        let held = look_for_beat(&device).await.ok();
        beats.push(held.map(|held| held.map(|beat| beat.beat)));
    }
    beats
}

/// What a look at the heartbeat shows.
enum Look {
    Ours,
    Another,
    /// No device has answered, or so much time has passed since that it says nothing.
    Late,
}

/// What the heartbeats say.
#[derive(Default)]
struct Marks {
    /// One is of somebody who came later.
    another: bool,
    read: usize,
    /// The first device that could be read.
    device: Option<Device>,
    /// When the last of those was asked that could be read.
    asked_at: Option<Nanos>,
}

impl Pool {
    fn heartbeat(&self, beat: u64) -> Heartbeat {
        let (host, log) = (self.opener.host(), self.log.mark());
        Heartbeat { pool: self.guid, nonce: self.nonce, host, beat, log }
    }

    /// Leaves this owner's mark on a device that has come back with an older one.
    pub(crate) async fn mark(&self, device: &Device) {
        // A device that fails this fails the next root too, which deals with it.
        let _ = write_beat(device, &self.heartbeat(0)).await;
    }

    /// The task that shows others that the pool is in use, and stops it when another has taken it.
    pub(crate) async fn heartbeat_loop(self: Rc<Self>) {
        self.beat_until_closed().await;
        self.possession.looks.rest().await;
    }

    async fn beat_until_closed(&self) {
        const AGAIN: Nanos = Nanos::from_millis(100);
        let (mut beat, mut pause) = (0, BEAT_EVERY);
        // Who has imported has looked all the time.
        if self.possession.known_at.get().is_none() {
            self.possession.renew(clock());
        }
        loop {
            let quit = Box::pin(self.sync.done.until(|| self.closed.get() || self.is_stopped()));
            let _ = rt::timeout(pause, quit).await;
            let ending = self.closed.get() || self.is_stopped();
            if ending && self.possession.is_sure() {
                self.possession.end();
                return;
            }
            pause = BEAT_EVERY;
            match self.look_and_beat(beat + 1).await {
                Look::Ours => beat += 1,
                Look::Late => pause = AGAIN,
                Look::Another => {
                    self.stop("another process has imported the pool; it must be imported anew");
                    self.possession.lose();
                    return;
                }
            }
        }
    }

    /// Devices that have this owner's mark, or take it when others do not answer.
    fn beat_devices(&self) -> Vec<Device> {
        let data = self.label_devices().into_iter().map(|(_, open)| open.device());
        let config = self.config.borrow();
        let devices = self.devices.borrow();
        let sides = config.logs.iter().flat_map(|ring| &ring.sides);
        let sides = sides.filter(|side| side.state == MemberUse::Online);
        let logs = sides.filter_map(|side| devices.get(&DeviceId(side.device)));
        data.chain(logs.map(OpenDevice::device)).collect()
    }

    /// Reads the heartbeat of one device that answers, or of all that do. What they said when they were
    /// asked before `since` says nothing of who is the owner now.
    async fn marks(&self, all: bool, since: Nanos) -> Marks {
        let mut marks = Marks::default();
        for answer in self.possession.looks.look(&self.beat_devices(), all).await {
            let known = |nonce: u64| nonce == self.nonce || self.possession.came_before(nonce);
            let held = answer.held.filter(|held| held.pool == self.guid);
            marks.another |= held.is_some_and(|held| !known(held.nonce));
            if answer.asked_at >= since {
                marks.read += 1;
                marks.device.get_or_insert(answer.device);
                marks.asked_at = marks.asked_at.max(Some(answer.asked_at));
            }
        }
        marks
    }

    async fn look_and_beat(&self, beat: u64) -> Look {
        let mut begun = clock();
        // After a gap one device is not enough: a beat of ours may have been on its way when time
        // stood still, and lie over another's now. An import leaves its mark on every device.
        let after_gap = !self.possession.is_sure();
        let since = if after_gap { begun } else { Nanos::ZERO };
        let mut marks = self.marks(after_gap, since).await;
        if after_gap && !marks.another && marks.read < 2 {
            // The late beat may lie over the only mark there was: whoever left it beats again.
            rt::sleep(BEATEN_AGAIN).await;
            begun = clock();
            marks = self.marks(true, begun).await;
        }
        if marks.another {
            return Look::Another;
        }
        // Where all have answered and none can be read, the next root fails too, and deals with it.
        let mute = marks.read == 0 && self.possession.looks.is_answered();
        let Some(at) = marks.asked_at.or(mute.then_some(begun)) else { return Look::Late };
        self.possession.renew(at);
        if !self.possession.is_sure() {
            return Look::Late;
        }
        let first = self.label_devices().into_iter().next().map(|(_, open)| open.device());
        if let Some(device) = marks.device.or(first) {
            self.possession.looks.beat(device, self.heartbeat(beat)).await;
        }
        Look::Ours
    }
}

#[cfg(test)]
mod tests;
