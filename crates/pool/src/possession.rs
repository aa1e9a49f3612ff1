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
use std::rc::Rc;

use forebay_device::{
    Allocation, BlockDevice, Deadline, Device, DeviceError, DeviceFuture, ErrorKind, Geometry,
    IoBuf, IoBytes, Operation, ZeroOptions,
};
use forebay_format::config::MemberUse;
use forebay_format::label::Heartbeat;
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::{DeviceId, Nanos};

use crate::import::device_match::Found;
use crate::labels::{look_for_beat, read_beat, write_beat};
use crate::opener::OpenDevice;
use crate::spec::{ImportOptions, Told};
use crate::{Opener, Pool, PoolError};
use looks::{Answer, Looks};

/// How long an import watches for the beats of another owner, and after its own first mark waits for
/// one that has come back: that one looks, finds the mark and stops.
pub(crate) const WATCH: Nanos = Nanos::from_secs(4);
/// How long a look at the heartbeat counts: less than [`WATCH`], so that the old owner has stopped
/// writing before the new one begins.
const TRUST: Nanos = Nanos::from_secs(3);
const BEAT_EVERY: Nanos = Nanos::from_secs(1);
/// When it is looked again by whoever is not sure.
const AGAIN: Nanos = Nanos::from_millis(100);
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
    /// Nobody looks any more.
    ended: Cell<bool>,
    /// Writes that a device has been given and has not answered.
    under_way: Cell<usize>,
    changed: Rc<Notify>,
    /// Whose marks this owner replaced when it came.
    before: RefCell<Vec<u64>>,
    looks: Rc<Looks>,
    /// What has been heard since it is not sure.
    gap: RefCell<Option<Gap>>,
}

/// A time without a look that counts. One device is not enough after it: a beat of ours may have been on its
/// way when time stood still, and lie over another's now. An import leaves its mark on every device, and
/// renews it: either two devices must have been heard, or one after whoever is there has beaten again.
struct Gap {
    since: Nanos,
    heard: BTreeSet<usize>,
    /// When the last look ended: another gap may follow.
    looked_at: Nanos,
}

/// What a look at the heartbeats shows.
enum Look {
    /// The devices that have said so, if any could be read.
    Ours(Vec<Device>),
    Another,
    /// No device has answered, or so much time has passed since that it says nothing.
    Late,
}

impl Possession {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            known_at: Cell::new(None),
            lost: Cell::new(false),
            ended: Cell::new(false),
            under_way: Cell::new(0),
            changed: Notify::new(),
            before: RefCell::default(),
            looks: Looks::new(),
            gap: RefCell::default(),
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

    /// Waits until it is known who the owner is: an error when it is another, or nobody looks any more.
    async fn settled(&self) -> Result<(), &'static str> {
        self.changed.until(|| self.lost.get() || self.ended.get() || self.is_sure()).await;
        if self.lost.get() {
            return Err("another process has imported the pool");
        }
        if self.ended.get() { Err("the pool has ended here") } else { Ok(()) }
    }

    fn is_idle(&self) -> bool {
        self.under_way.get() == 0
    }

    /// The heartbeat was looked at, at `at` or later, and was ours.
    fn renew(&self, at: Nanos) {
        let before = self.known_at.get().unwrap_or(Nanos::ZERO);
        self.known_at.set(Some(before.max(at)));
        self.changed.notify_all();
    }

    /// Looks at the heartbeat of one device that answers, or of all that do, for those of others than this
    /// owner of `pool`.
    async fn look(&self, devices: &[Device], all: bool, pool: u64, nonce: u64) -> Look {
        let begun = clock();
        let since = self.not_sure_since(begun);
        let all = all || since.is_some();
        let answers = self.looks.look(devices, all).await;
        let known = |held: &Heartbeat| held.nonce == nonce || self.came_before(held.nonce);
        let mut held = answers.iter().filter_map(|answer| answer.held);
        if held.any(|held| held.pool == pool && !known(&held)) {
            return Look::Another;
        }
        // What was asked before, or so long ago that time may have stood still again since, says nothing of who
        // is the owner now.
        let (since, now) = (since.unwrap_or(Nanos::ZERO), clock());
        let counts = |at: Nanos| at >= since && now.since(at) <= TRUST;
        let heard = || answers.iter().filter(|answer| counts(answer.asked_at));
        // Where all have answered and none can be read, the next root fails too, and deals with it.
        let mute = answers.is_empty() && self.looks.is_answered();
        let asked_at = heard().map(|answer| answer.asked_at).max().or(mute.then_some(begun));
        let Some(asked_at) = asked_at else { return Look::Late };
        if let Some(gap) = &mut *self.gap.borrow_mut() {
            gap.heard.extend(heard().map(Answer::key));
            gap.looked_at = now;
            if gap.heard.len() < 2 && asked_at < gap.since + BEATEN_AGAIN {
                return Look::Late;
            }
        }
        self.renew(asked_at);
        match self.is_sure() {
            true => Look::Ours(heard().map(|answer| answer.device.clone()).collect()),
            false => Look::Late,
        }
    }

    /// Since when there has been no look that counts, if it is so.
    fn not_sure_since(&self, now: Nanos) -> Option<Nanos> {
        let mut gap = self.gap.borrow_mut();
        if self.is_sure() {
            *gap = None;
        } else if gap.as_ref().is_none_or(|gap| now.since(gap.looked_at) > TRUST) {
            *gap = Some(Gap { since: now, heard: BTreeSet::new(), looked_at: now });
        }
        gap.as_ref().map(|gap| gap.since)
    }

    /// The heartbeat ends, and with it the right to write.
    fn end(&self) {
        self.ended.set(true);
        self.changed.notify_all();
    }

    fn lose(&self) {
        self.lost.set(true);
        self.changed.notify_all();
    }
}

/// A write that a device has been given.
struct UnderWay<'a>(&'a Possession);

impl<'a> UnderWay<'a> {
    fn new(possession: &'a Possession) -> Self {
        possession.under_way.set(possession.under_way.get() + 1);
        Self(possession)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        if self.0.is_idle() {
            self.0.changed.notify_all();
        }
    }
}

/// How long a device may take for a command before its pool's properties are known.
const SPAN_AT_FIRST: Nanos = Nanos::from_secs(30);

/// A device that must answer in time, and is asked to write by the pool's only owner.
#[derive(Clone)]
pub(crate) struct Guarded {
    pub deadline: Rc<Deadline>,
    pub device: Device,
}

/// Through which all devices of a pool are opened.
pub(crate) struct Gate {
    opener: Rc<dyn Opener>,
    pub possession: Rc<Possession>,
}

impl Gate {
    /// One for a pool that may write, until its heartbeat runs.
    pub fn new(opener: Rc<dyn Opener>) -> Rc<Self> {
        Rc::new(Self { opener, possession: Possession::new() })
    }

    /// Opens a device; it must answer in time. Waiting for a look at the heartbeat is not the device's fault
    /// and is not counted.
    pub fn open(&self, path: &str) -> Result<Guarded, DeviceError> {
        let deadline = Deadline::new(self.opener.open(path)?, SPAN_AT_FIRST);
        let fenced = Fenced { inner: deadline.clone(), possession: self.possession.clone() };
        Ok(Guarded { deadline, device: Rc::new(fenced) })
    }

    /// See [`Opener::host`].
    pub fn host(&self) -> u64 {
        self.opener.host()
    }

    /// See [`Opener::witness`].
    pub async fn witness(&self, pool: u64, told: Told) {
        self.opener.witness(pool, told).await;
    }

    /// See [`Opener::is_unwanted`].
    pub fn is_unwanted(&self) -> bool {
        self.opener.is_unwanted()
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
            let refused = |why: &str| {
                let kind = ErrorKind::Other { detail: why.to_owned() };
                DeviceError::new(self.name(), operation, offset_bytes, len_bytes, kind)
            };
            self.possession.settled().await.map_err(refused)?;
            let _under_way = UnderWay::new(&self.possession);
            call().await?;
            // The kernel may have held it while this process stood still, and have written it after
            // a new owner had read what counts.
            self.possession.settled().await.map_err(refused)
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
        let devices: Vec<Device> = found.iter().map(|found| found.guarded.device.clone()).collect();
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
        let (mut beat, mut pause) = (0, BEAT_EVERY);
        loop {
            rt::sleep(pause).await;
            let devices = self.devices.borrow().clone();
            let Heartbeat { pool, nonce, .. } = self.mine;
            let look = self.possession.look(&devices, true, pool, nonce).await;
            if self.has_ended() {
                return;
            }
            match look {
                Look::Ours(devices) => {
                    beat += 1;
                    pause = BEAT_EVERY;
                    for device in devices {
                        self.possession.looks.beat(device, Heartbeat { beat, ..self.mine }).await;
                    }
                }
                Look::Late => pause = AGAIN,
                // The mark of somebody else stays, and this import ends.
                Look::Another => return self.possession.lose(),
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
        let device = &found.guarded.device;
        let held = look_for_beat(device).await.ok();
        beats.push(held.map(|held| held.map(|beat| beat.beat)));
    }
    beats
}

impl Pool {
    fn heartbeat(&self, beat: u64) -> Heartbeat {
        let (host, log) = (self.gate.host(), self.log.mark());
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
        self.gate.possession.looks.rest().await;
    }

    async fn beat_until_closed(&self) {
        let possession = &self.gate.possession;
        let (mut beat, mut pause) = (0, BEAT_EVERY);
        // Who has imported has looked all the time.
        if possession.known_at.get().is_none() {
            possession.renew(clock());
        }
        loop {
            let ending = || self.closed.get() || self.is_stopped();
            let over = rt::now() + pause;
            let _ = rt::timeout(pause, Box::pin(self.sync.done.until(ending))).await;
            if ending() {
                // What a device has been given still counts, and others have to see that there is something.
                let idle = Box::pin(possession.changed.until(|| possession.is_idle()));
                if rt::timeout(over.since(rt::now()), idle).await.is_ok() {
                    return possession.end();
                }
            }
            match possession.look(&self.beat_devices(), false, self.guid, self.nonce).await {
                Look::Ours(devices) => {
                    beat += 1;
                    pause = BEAT_EVERY;
                    let first = || self.beat_devices().into_iter().next();
                    if let Some(device) = devices.into_iter().next().or_else(first) {
                        possession.looks.beat(device, self.heartbeat(beat)).await;
                    }
                }
                Look::Late => pause = AGAIN,
                Look::Another => {
                    self.stop("another process has imported the pool; it must be imported anew");
                    return possession.lose();
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
}

#[cfg(test)]
mod tests;
