//! A cache device beside clients, against a model: blocks that are overwritten while they are put
//! there, a device that fails, rots, hangs and leaves, less memory, crashes and imports.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{Device, IoBuf, Operation};
use forebay_format::cache_device::CacheShape;
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::Nanos;

use super::cache_devices::{BLOCK, DEVICES, Small, stats, with_cache};
use super::rack::{Rack, scripted};
use super::{names, stamp, volume};
use crate::spec::ImportOptions;
use crate::status::Health;
use crate::{Opener, Pool};

/// Three times what the cache in memory has room for.
const BLOCKS: u64 = 768;
const CLIENTS: u64 = 3;
/// Blocks in a row that one client changes; the next ones are another client's.
const STRIPE: u64 = 8;
const SIZE_BYTES: u64 = 64 << 20;
/// Blocks of a region on a small device, and the regions that a run with little memory uses.
const REGION: u64 = 15;
const FEW_REGIONS: u64 = 20;

/// What was written to a block, in order; 0 stands for zeros.
struct Block {
    salts: Vec<u64>,
    /// How many of the changes are durable.
    durable: usize,
}

struct Model {
    blocks: RefCell<Vec<Block>>,
    salts: Cell<u64>,
    /// The device "k" was made to fail, or its content was changed.
    is_spoiled: Cell<bool>,
    is_over: Cell<bool>,
    /// Blocks that came from the device in runs whose figures were compared.
    hits: Cell<u64>,
}

fn content(salt: u64) -> Vec<u8> {
    if salt == 0 { vec![0; BLOCK as usize] } else { stamp(BLOCK as usize, salt << 20).to_vec() }
}

impl Model {
    fn new() -> Rc<Self> {
        let blocks = (0..BLOCKS).map(|_| Block { salts: vec![0], durable: 1 }).collect();
        Rc::new(Self {
            blocks: RefCell::new(blocks),
            salts: Cell::new(0),
            is_spoiled: Cell::new(false),
            is_over: Cell::new(false),
            hits: Cell::new(0),
        })
    }

    fn ask(&self, at: u64, salt: u64) {
        self.blocks.borrow_mut()[at as usize].salts.push(salt);
    }

    fn answer(&self, first: u64, count: u64) {
        for block in &mut self.blocks.borrow_mut()[first as usize..][..count as usize] {
            block.durable = block.salts.len();
        }
    }

    async fn write(&self, v: &Device, first: u64, count: u64) {
        let mut data = Vec::new();
        for at in first..first + count {
            self.salts.set(self.salts.get() + 1);
            self.ask(at, self.salts.get());
            data.extend(content(self.salts.get()));
        }
        v.write(first * BLOCK, IoBuf::copy_of(&data).freeze(), true).await.unwrap();
        self.answer(first, count);
    }

    async fn discard(&self, v: &Device, first: u64, count: u64) {
        (first..first + count).for_each(|at| self.ask(at, 0));
        v.discard(first * BLOCK, count * BLOCK, true).await.unwrap();
        self.answer(first, count);
    }

    /// Reads blocks that are not changed meanwhile.
    async fn read(&self, v: &Device, first: u64, count: u64) {
        let buf = IoBuf::zeroed((count * BLOCK) as usize);
        let got = v.read(first * BLOCK, buf).await.unwrap();
        for (at, got) in (first..).zip(got.chunks(BLOCK as usize)) {
            let salt = *self.blocks.borrow()[at as usize].salts.last().unwrap();
            assert!(*got == content(salt), "block {at} is not version {salt}");
        }
    }

    /// After a crash each block has what was durable, or what was asked for later.
    async fn check_after_crash(&self, v: &Device) {
        for at in (0..BLOCKS).map(|number| number * 389 % BLOCKS) {
            let got = v.read(at * BLOCK, IoBuf::zeroed(BLOCK as usize)).await.unwrap();
            let block = &mut self.blocks.borrow_mut()[at as usize];
            let may_hold = &block.salts[block.durable - 1..];
            let found = may_hold.iter().find(|salt| content(**salt) == got[..]);
            let found = *found.unwrap_or_else(|| panic!("block {at} is none of {may_hold:?}"));
            *block = Block { salts: vec![found], durable: 1 };
        }
    }
}

/// Commands take time before and after the device performs them.
#[derive(Default)]
struct Delays {
    /// Reads of "k" take longer than a reader waits.
    hangs: Cell<bool>,
}

impl Script for Delays {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let hangs =
            self.hangs.get() && command.device == "k" && command.operation == Operation::Read;
        Box::pin(async move {
            let span = if hangs { 200_000_000 } else { 100_000 };
            rt::sleep(Nanos(rt::random_below(span))).await;
            Decision::Run
        })
    }

    fn after<'a>(&'a self, _command: Command<'a>) -> Answer<'a, ()> {
        Box::pin(rt::sleep(Nanos(rt::random_below(100_000))))
    }
}

async fn client(model: Rc<Model>, v: Device, number: u64) {
    while !model.is_over.get() {
        let stripe = rt::random_below(BLOCKS / STRIPE / CLIENTS) * CLIENTS + number;
        let skip = rt::random_below(STRIPE);
        let (first, count) = (stripe * STRIPE + skip, 1 + rt::random_below(STRIPE - skip));
        match rt::random_below(20) {
            0..3 => model.write(&v, first, count).await,
            3 => model.discard(&v, first, count).await,
            _ => model.read(&v, first, count).await,
        }
    }
}

/// What happens to the cache device and to the cache.
async fn operator(model: Rc<Model>, rack: Rc<Rack>, pool: Rc<Pool>, delays: Rc<Delays>) {
    while !model.is_over.get() {
        rt::sleep(Nanos::from_micros(rt::random_below(40_000))).await;
        let pick = |values: &[&'static str]| values[rt::random_below(values.len() as u64) as usize];
        let k = || "k".to_owned();
        match rt::random_below(8) {
            0 => {
                model.is_spoiled.set(true);
                let shape = CacheShape::of(SIZE_BYTES);
                let position = rt::random_below(FEW_REGIONS * REGION) as u32;
                let garbage = IoBuf::copy_of(&[0xee; BLOCK as usize]).freeze();
                let at_bytes = shape.block_offset_bytes(position);
                rack.device("k").write(at_bytes, garbage, false).await.unwrap();
            }
            1 => {
                model.is_spoiled.set(true);
                rack.switches.unreadable.borrow_mut().insert(k());
                rt::sleep(Nanos::from_millis(1)).await;
                rack.switches.unreadable.borrow_mut().clear();
            }
            2 => {
                model.is_spoiled.set(true);
                rack.switches.unwritable.borrow_mut().insert(k());
                rt::sleep(Nanos::from_millis(5)).await;
                rack.switches.unwritable.borrow_mut().clear();
            }
            3 => pool.offline("k").await.unwrap(),
            4 => pool.set("cache_size", pick(&["1M", "512K", "64K"])).await.unwrap(),
            5 => pool.set("cache_dwpd", pick(&["off", "off", "1000"])).await.unwrap(),
            6 => {
                delays.hangs.set(true);
                rt::sleep(Nanos::from_millis(2)).await;
                delays.hangs.set(false);
            }
            _ => pool.sync().await.unwrap(),
        }
        let state = pool.status().caches[0].state;
        if matches!(state, Health::Offline | Health::Faulted) && rt::random_below(2) == 0 {
            pool.online("k").await.unwrap();
        }
    }
}

/// What is shown of the cache device agrees with itself and with what happened.
fn check_figures(model: &Model, pool: &Pool) {
    let (shown, stats) = (pool.status().caches.remove(0), stats(pool));
    let space = shown.space.unwrap();
    assert_eq!(space.raw_alloc_bytes, Some(stats.used_bytes));
    assert!(stats.used_bytes <= space.raw_size_bytes);
    if !model.is_spoiled.get() {
        let errors = (shown.read_errors, shown.write_errors, shown.checksum_errors);
        assert_eq!(errors, (0, 0, 0), "the device did nothing wrong");
    }
}

/// Each block comes from memory, from the cache device or from the main store.
async fn check_where_blocks_come_from(model: &Model, pool: &Pool, v: &Device) {
    let counts = || {
        let all = pool.stats();
        let main: u64 = ["a", "b", "c"].iter().map(|device| all.devices[*device].reads).sum();
        let device = &all.cache_devices[0];
        (all.cache.hits, device.hits, main)
    };
    let before = counts();
    let mut mapped = 0;
    for at in (0..BLOCKS).map(|number| number * 389 % BLOCKS) {
        model.read(v, at, 1).await;
        mapped += u64::from(*model.blocks.borrow()[at as usize].salts.last().unwrap() != 0);
    }
    let now = counts();
    let found = (now.0 - before.0, now.1 - before.1, now.2 - before.2);
    // A read that begins where one of a client ended may read ahead.
    let all = found.0 + found.1 + found.2;
    assert!((mapped..=mapped + 3).contains(&all), "{found:?} of {mapped}");
}

/// One run of the pool. It ends in an export, or at any moment.
async fn run(model: Rc<Model>, rack: Rc<Rack>, is_first: bool, crashes: bool) {
    let delays = Rc::new(Delays::default());
    let mut host: Rc<dyn Opener> = scripted(rack.host(1), delays.clone());
    if rt::random_below(3) > 0 {
        // An eighth of it is their index: they are written around and around.
        host = Rc::new(Small { inner: host, memory_bytes: 8 * 22 * REGION * FEW_REGIONS });
    }
    let options = ImportOptions::default();
    let mut spec = with_cache();
    spec.properties.insert("cache_dwpd".to_owned(), "off".to_owned());
    let pool = match is_first {
        true => Pool::create(host, "tank", &spec).await.unwrap(),
        false => Pool::import(host, &names(DEVICES), "tank", &options).await.unwrap(),
    };
    if is_first {
        pool.create_volume(&volume(16 << 20)).await.unwrap();
    }
    if pool.status().caches[0].state == Health::Offline {
        pool.online("k").await.unwrap();
    }
    let v = pool.open_volume("v").unwrap();
    model.check_after_crash(&v).await;
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        tasks.push(rt::spawn(client(model.clone(), v.clone(), number)));
    }
    let operates = rt::random_below(4) > 0;
    if operates {
        let operator = operator(model.clone(), rack.clone(), pool.clone(), delays);
        tasks.push(rt::spawn(operator));
    }
    rt::sleep(Nanos::from_millis(200 + rt::random_below(800))).await;
    check_figures(&model, &pool);
    if crashes {
        rt::halt();
        return rt::yield_now().await;
    }
    model.is_over.set(true);
    for task in tasks {
        task.await;
    }
    pool.sync().await.unwrap();
    check_figures(&model, &pool);
    if !operates {
        // Each hit is counted once, and nothing else is.
        check_where_blocks_come_from(&model, &pool, &v).await;
        model.hits.set(model.hits.get() + stats(&pool).hits);
    }
    pool.export().await.unwrap();
}

#[test]
fn a_cache_device_beside_clients_is_as_a_model_says() {
    let mut hits = 0;
    for seed in 0..4 {
        let (rack, model) = (Rack::new(DEVICES, SIZE_BYTES), Model::new());
        for boot in 0..6 {
            model.is_over.set(false);
            model.is_spoiled.set(false);
            let runtime = Runtime::simulated(100 * seed + boot);
            let crashes = (seed + boot) % 2 == 1;
            runtime.run(run(model.clone(), rack.clone(), boot == 0, crashes));
            rack.switches.unreadable.borrow_mut().clear();
            rack.switches.unwritable.borrow_mut().clear();
        }
        hits += model.hits.get();
    }
    assert!(hits > 0);
}
