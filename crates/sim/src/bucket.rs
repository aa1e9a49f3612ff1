//! An object store in virtual time, which fails as object stores fail.
//!
//! What enters: requests. What leaves: answers after a while, errors whose outcome is unknown.
//! What always holds: of several puts of a new object one succeeds at most, and a get that begins
//! after a put was answered finds the object; listings may lag.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{IoBytes, Operation};
use forebay_objects::{Answer, Store, StoreError};
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::world::CommandEvent;
use crate::{Rng, Seed, World};

/// How a store behaves. Chances are in thousandths of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketConfig {
    /// The shortest time that a request takes.
    pub least_latency: Nanos,
    /// The usual span above it; one request in fifty takes ten times as long.
    pub latency_span: Nanos,
    /// Requests that the store answers with 503, without an effect.
    pub refused: u64,
    /// Requests that have their effect without an answer.
    pub unanswered: u64,
    /// Requests without an answer whose effect comes later.
    pub late: u64,
    /// Puts that the network repeats later.
    pub repeated: u64,
    /// How long a listing may lag behind.
    pub listing_lag: Nanos,
    /// Whether no client gets an answer.
    pub down: bool,
}

impl BucketConfig {
    /// A store that answers at once and never fails.
    #[must_use]
    pub fn calm() -> Self {
        Self {
            least_latency: Nanos::from_millis(1),
            latency_span: Nanos::from_millis(1),
            refused: 0,
            unanswered: 0,
            late: 0,
            repeated: 0,
            listing_lag: Nanos(0),
            down: false,
        }
    }
}

/// The longest time after which the effect of a request may come.
const LATE_SPAN: Nanos = Nanos::from_secs(8);

/// What a request changes, on its way to the store.
type Effect = Rc<dyn Fn(&Bucket)>;

/// The objects of a store. Its clients are made by [`Bucket::client`].
pub struct Bucket {
    config: Cell<BucketConfig>,
    objects: RefCell<BTreeMap<String, Rc<[IoBytes]>>>,
    /// Changes of names, for listings: when, which, and whether it is there.
    changes: RefCell<Vec<(Nanos, String, bool)>>,
    rng: RefCell<Rng>,
    /// Requests for objects whose names begin so are answered with 500.
    broken: RefCell<Option<String>>,
    /// Where requests count as commands, and of which disk.
    counted: Option<(Rc<World>, usize)>,
    restarts: Cell<u64>,
    /// Changes that have had no effect yet, by number.
    under_way: RefCell<BTreeMap<u64, Effect>>,
    changes_begun: Cell<u64>,
}

impl Bucket {
    /// An empty store.
    #[must_use]
    pub fn new(config: BucketConfig, seed: Seed) -> Rc<Self> {
        Self::with(config, seed, None)
    }

    /// An empty store outside of a machine, whose requests count as commands of its disk `disk`: a
    /// power cut of the machine may come before, during and after each of them.
    #[must_use]
    pub fn beside(world: &Rc<World>, disk: usize, config: BucketConfig, seed: Seed) -> Rc<Self> {
        Self::with(config, seed, Some((world.clone(), disk)))
    }

    fn with(config: BucketConfig, seed: Seed, counted: Option<(Rc<World>, usize)>) -> Rc<Self> {
        Rc::new(Self {
            config: Cell::new(config),
            objects: RefCell::default(),
            changes: RefCell::default(),
            rng: RefCell::new(seed.derive("bucket").rng()),
            broken: RefCell::default(),
            counted,
            restarts: Cell::new(0),
            under_way: RefCell::default(),
            changes_begun: Cell::new(0),
        })
    }

    /// Begins a new runtime, whose time begins anew. Of the changes that the one before had asked
    /// for and that had no effect yet, half come late, if the store is one where requests do.
    /// Returns how often this was called.
    pub fn restart(self: &Rc<Self>) -> u64 {
        self.changes.take();
        let left = self.under_way.take();
        if self.config.get().late > 0 {
            left.into_values().filter(|_| self.chance(500)).for_each(|effect| self.later(effect));
        }
        self.restarts.set(self.restarts.get() + 1);
        self.restarts.get()
    }

    /// The machine whose changes are on their way stands still. Half of them arrive in the current
    /// runtime, if the store is one where requests come late and twice.
    pub fn overtake(self: &Rc<Self>) {
        let BucketConfig { late, repeated, .. } = self.config.get();
        if late > 0 && repeated > 0 {
            let held: Vec<Effect> = self.under_way.borrow().values().cloned().collect();
            held.into_iter().filter(|_| self.chance(500)).for_each(|effect| self.later(effect));
        }
    }

    /// A change is on its way. Returns its number.
    fn send(&self, effect: &Effect) -> u64 {
        let number = self.changes_begun.get();
        self.changes_begun.set(number + 1);
        self.under_way.borrow_mut().insert(number, effect.clone());
        number
    }

    /// A change arrived, or never will.
    fn arrive(&self, number: u64) {
        self.under_way.borrow_mut().remove(&number);
    }

    fn later(self: &Rc<Self>, effect: Effect) {
        let bucket = self.clone();
        let number = self.send(&effect);
        let pause = Nanos(self.rng.borrow_mut().below(LATE_SPAN.0));
        rt::spawn_detached(Box::pin(async move {
            rt::sleep(pause).await;
            bucket.arrive(number);
            bucket.tell(|| "store: a late request".to_owned());
            effect(&bucket);
        }));
    }

    /// Takes over what another store holds, and how it goes on.
    pub fn restore(&self, other: &Self) {
        self.config.set(other.config.get());
        self.objects.borrow_mut().clone_from(&other.objects.borrow());
        self.rng.borrow_mut().clone_from(&other.rng.borrow());
        self.restarts.set(other.restarts.get());
        self.under_way.borrow_mut().clone_from(&other.under_way.borrow());
        self.changes_begun.set(other.changes_begun.get());
        self.changes.take();
    }

    /// A client that calls itself `name`.
    #[must_use]
    pub fn client(self: &Rc<Self>, name: &str) -> Rc<BucketClient> {
        Rc::new(BucketClient { bucket: self.clone(), name: name.to_owned() })
    }

    /// From here on the store behaves as `config` says.
    pub fn set_config(&self, config: BucketConfig) {
        self.config.set(config);
    }

    /// Names of all objects, in order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.objects.borrow().keys().cloned().collect()
    }

    /// Loses an object. Returns whether there was one.
    pub fn lose(&self, name: &str) -> bool {
        self.objects.borrow_mut().remove(name).is_some()
    }

    /// From here on requests for objects whose names begin with `prefix` are answered with 500.
    pub fn refuse(&self, prefix: Option<&str>) {
        *self.broken.borrow_mut() = prefix.map(str::to_owned);
    }

    fn is_broken(&self, name: &str) -> bool {
        self.broken.borrow().as_ref().is_some_and(|prefix| name.starts_with(prefix.as_str()))
    }

    fn chance(&self, thousandths: u64) -> bool {
        thousandths > 0 && self.rng.borrow_mut().below(1000) < thousandths
    }

    async fn take_time(&self) {
        let BucketConfig { least_latency, latency_span, .. } = self.config.get();
        let span = match self.chance(20) {
            true => latency_span.0 * 10,
            false => latency_span.0,
        };
        let more = self.rng.borrow_mut().below(span.max(1));
        rt::sleep(Nanos(least_latency.0 + more)).await;
    }

    fn event(&self, operation: Operation) -> Option<(&Rc<World>, CommandEvent)> {
        let (world, disk) = self.counted.as_ref()?;
        let (offset_bytes, len_bytes, fua, content) = (0, 0, false, 0);
        let disk = *disk;
        Some((world, CommandEvent { disk, operation, offset_bytes, len_bytes, fua, content }))
    }

    /// Counts a request that begins. It ends here if the machine has no power.
    async fn begin(&self, operation: Operation) {
        if let Some((world, event)) = self.event(operation) {
            let is_sent = world.before_submit(&event);
            if is_sent {
                world.after_submit();
            }
            if !is_sent || !world.is_powered() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Counts a request that was answered. The machine may lose its power before it hears that.
    async fn end(&self, operation: Operation) {
        if let Some((world, event)) = self.event(operation) {
            if !world.after_complete(&event) {
                std::future::pending::<()>().await;
            }
        }
    }

    fn note(&self, name: &str, is_there: bool) {
        self.changes.borrow_mut().push((rt::now(), name.to_owned(), is_there));
    }

    fn tell(&self, line: impl FnOnce() -> String) {
        if let Some((world, _)) = &self.counted {
            world.tell(line);
        }
    }

    fn store(&self, name: &str, parts: &[IoBytes], only_new: bool) -> Result<(), StoreError> {
        self.tell(|| format!("store: put {name}"));
        let mut objects = self.objects.borrow_mut();
        if only_new && objects.contains_key(name) {
            return Err(StoreError::Exists);
        }
        objects.insert(name.to_owned(), parts.into());
        drop(objects);
        self.note(name, true);
        Ok(())
    }

    fn remove(&self, name: &str) {
        if self.objects.borrow_mut().remove(name).is_some() {
            self.note(name, false);
        }
    }

    /// Names as a listing shows them: as they were a while ago.
    fn listing(&self, prefix: &str) -> Vec<String> {
        let lag = self.config.get().listing_lag.0;
        let lag = if lag > 0 { self.rng.borrow_mut().below(lag) } else { 0 };
        let as_of = Nanos(rt::now().0.saturating_sub(lag));
        let mut names: std::collections::BTreeSet<String> =
            self.objects.borrow().keys().cloned().collect();
        for (at, name, is_there) in self.changes.borrow().iter().rev() {
            if *at <= as_of {
                break;
            }
            match is_there {
                true => names.remove(name),
                false => names.insert(name.clone()),
            };
        }
        names.into_iter().filter(|name| name.starts_with(prefix)).collect()
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    Refused,
    Unanswered,
    Late,
    Repeated,
}

/// A client of a [`Bucket`].
pub struct BucketClient {
    bucket: Rc<Bucket>,
    name: String,
}

impl BucketClient {
    fn unavailable(text: &str) -> StoreError {
        StoreError::Unavailable { text: text.to_owned() }
    }

    /// A request for an object that the store cannot handle.
    async fn fail<T>(&self) -> Result<T, StoreError> {
        self.bucket.begin(Operation::Read).await;
        self.reach().await?;
        Err(Self::unavailable("500 Internal Server Error"))
    }

    /// Lets a request reach the store, and draws what becomes of it.
    async fn reach(&self) -> Result<Fate, StoreError> {
        self.bucket.take_time().await;
        if self.bucket.config.get().down {
            rt::sleep(Nanos::from_secs(1)).await;
            return Err(Self::unavailable("connection refused"));
        }
        let config = self.bucket.config.get();
        let fates = [
            (config.refused, Fate::Refused),
            (config.unanswered, Fate::Unanswered),
            (config.late, Fate::Late),
            (config.repeated, Fate::Repeated),
        ];
        let drawn = fates.into_iter().find(|(chance, _)| self.bucket.chance(*chance));
        Ok(drawn.map_or(Fate::Answered, |(_, fate)| fate))
    }

    /// Has a change of the store its effect by its fate.
    async fn change<T: 'static>(
        &self,
        change: impl Fn(&Bucket) -> Result<T, StoreError> + 'static,
    ) -> Result<T, StoreError> {
        let change = Rc::new(change);
        let effect: Effect = {
            let change = change.clone();
            Rc::new(move |bucket| drop(change(bucket)))
        };
        self.bucket.begin(Operation::Write).await;
        let number = self.bucket.send(&effect);
        let fate = self.reach().await;
        self.bucket.arrive(number);
        let fate = fate?;
        if fate == Fate::Refused {
            return Err(Self::unavailable("503 Slow Down"));
        }
        if fate == Fate::Late {
            self.bucket.later(effect);
            return Err(Self::unavailable("timed out"));
        }
        let answer = change(&self.bucket);
        match fate {
            Fate::Unanswered => return Err(Self::unavailable("connection reset")),
            Fate::Repeated => self.bucket.later(effect),
            _ => {}
        }
        self.bucket.end(Operation::Write).await;
        self.bucket.take_time().await;
        answer
    }
}

impl Store for BucketClient {
    fn name(&self) -> &str {
        &self.name
    }

    fn put<'a>(&'a self, name: &'a str, parts: Vec<IoBytes>, only_new: bool) -> Answer<'a, ()> {
        if self.bucket.is_broken(name) {
            return Box::pin(self.fail());
        }
        let name = name.to_owned();
        Box::pin(self.change(move |bucket| bucket.store(&name, &parts, only_new)))
    }

    fn get<'a>(&'a self, name: &'a str, range: Option<Range<u64>>) -> Answer<'a, Vec<IoBytes>> {
        Box::pin(async move {
            if self.bucket.is_broken(name) {
                return self.fail().await;
            }
            self.bucket.begin(Operation::Read).await;
            if self.reach().await? != Fate::Answered {
                return Err(Self::unavailable("503 Slow Down"));
            }
            let found = self.bucket.objects.borrow().get(name).cloned();
            self.bucket.tell(|| format!("store: get {name}: {}", found.is_some()));
            self.bucket.end(Operation::Read).await;
            self.bucket.take_time().await;
            let parts = found.ok_or(StoreError::Missing)?;
            let Some(range) = range else { return Ok(parts.to_vec()) };
            let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
            if range.is_empty() || range.start >= len {
                return Err(StoreError::Refused { text: "416 InvalidRange".to_owned() });
            }
            Ok(cut(&parts, range.start as usize, range.end.min(len) as usize))
        })
    }

    fn delete(&self, names: Vec<String>) -> Answer<'_, ()> {
        Box::pin(self.change(move |bucket| {
            names.iter().for_each(|name| bucket.remove(name));
            Ok(())
        }))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>> {
        Box::pin(async move {
            self.bucket.begin(Operation::Read).await;
            if self.reach().await? != Fate::Answered {
                return Err(Self::unavailable("503 Slow Down"));
            }
            let names = self.bucket.listing(prefix);
            self.bucket.end(Operation::Read).await;
            Ok(names)
        })
    }
}

/// The bytes `from` to `to` of an object.
fn cut(parts: &[IoBytes], from: usize, to: usize) -> Vec<IoBytes> {
    let mut out = Vec::new();
    let mut at = 0;
    for part in parts {
        let (first, last) = (from.max(at), to.min(at + part.len()));
        if first < last {
            out.push(part.slice(first - at, last - first));
        }
        at += part.len();
    }
    out
}
