//! A device with requests beside each other, over a store that fails, against a model, over power
//! cuts.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use common::{fill, open, stormy, take};
use forebay_device::{BlockDevice, IoBuf, ReservationChange, ReservationKey};
use forebay_objects::ObjectDevice;
use forebay_rt::{self as rt, Runtime};
use forebay_sim::{Bucket, BucketConfig, Rng, Seed};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Nanos};

/// The first block: labels end at 256.
const FIRST: u64 = 240;
const BLOCKS: usize = 640;
/// Blocks in a row that one client writes; the next ones are another client's.
const STRIPE: usize = 16;
const CLIENTS: usize = 4;
const KEY: ReservationKey = ReservationKey(7);

/// What was asked of a block.
#[derive(Clone, Copy)]
enum Change {
    Write(u64),
    Discard,
}

/// What was asked of a block, in order: one client alone changes it, one request at a time.
struct Block {
    changes: Vec<Change>,
    /// Changes that were answered.
    answered: usize,
    /// Changes that are durable.
    durable: usize,
}

impl Block {
    fn holding(stamp: u64) -> Self {
        Self { changes: vec![Change::Write(stamp)], answered: 1, durable: 1 }
    }

    /// What it may hold after its first `count` changes. Of what is discarded anything may be read
    /// that was there before.
    fn after(&self, count: usize) -> Vec<u64> {
        let stamp = |change: &Change| match change {
            Change::Write(stamp) => *stamp,
            Change::Discard => 0,
        };
        match self.changes[..count].last().expect("it holds something from the start") {
            Change::Write(stamp) => vec![*stamp],
            Change::Discard => self.changes[..count].iter().map(stamp).collect(),
        }
    }
}

struct Model {
    blocks: RefCell<Vec<Block>>,
    stamps: Cell<u64>,
}

impl Model {
    fn new() -> Rc<Self> {
        let blocks = RefCell::new((0..BLOCKS).map(|_| Block::holding(0)).collect());
        Rc::new(Self { blocks, stamps: Cell::new(0) })
    }

    /// A change of blocks is asked for.
    fn ask(&self, first: usize, count: usize, change: impl Fn(usize) -> Change) {
        for (at, block) in self.blocks.borrow_mut()[first..][..count].iter_mut().enumerate() {
            block.changes.push(change(at));
        }
    }

    fn answer(&self, first: usize, count: usize, is_durable: bool) {
        for block in &mut self.blocks.borrow_mut()[first..][..count] {
            block.answered = block.changes.len();
            if is_durable {
                block.durable = block.answered;
            }
        }
    }

    /// What a flush that begins now makes durable.
    fn answered(&self) -> Vec<usize> {
        self.blocks.borrow().iter().map(|block| block.answered).collect()
    }

    fn flushed(&self, answered: &[usize]) {
        for (block, answered) in self.blocks.borrow_mut().iter_mut().zip(answered) {
            block.durable = block.durable.max(*answered);
        }
    }

    /// After a power cut every block has all that was durable.
    fn check_after_cut(&self, found: &[u64]) {
        for (at, (block, found)) in self.blocks.borrow_mut().iter_mut().zip(found).enumerate() {
            let (least, most) = (block.durable, block.changes.len());
            let may_hold: Vec<u64> = (least..=most).flat_map(|count| block.after(count)).collect();
            let at = FIRST + at as u64;
            assert!(may_hold.contains(found), "block {at} has {found:#x}, not {may_hold:x?}");
            *block = Block::holding(*found);
        }
    }
}

/// The stamp of each block of a range.
async fn stamps_at(device: &ObjectDevice, first: usize, count: usize) -> Vec<u64> {
    let at = (FIRST + first as u64) * BLOCK_BYTES;
    let bytes = device.read(at, IoBuf::zeroed(count * BLOCK_LEN)).await.unwrap();
    let stamp = |(at, block): (usize, &[u8])| {
        let found = u64::from_le_bytes(block[..8].try_into().unwrap());
        assert!(block.chunks(8).all(|word| word == found.to_le_bytes()), "{first} + {at} is torn");
        found
    };
    bytes.chunks(BLOCK_LEN).enumerate().map(stamp).collect()
}

/// Reads blocks that are not changed meanwhile.
async fn check(device: &ObjectDevice, model: &Model, first: usize, count: usize) {
    let found = stamps_at(device, first, count).await;
    let blocks = model.blocks.borrow();
    for (block, found) in blocks[first..][..count].iter().zip(found) {
        let may_hold = block.after(block.answered);
        assert!(may_hold.contains(&found), "{found:#x} is none of {may_hold:x?}");
    }
}

/// A client changes and reads blocks that no other one changes, and flushes for all.
async fn client(device: Rc<ObjectDevice>, model: Rc<Model>, number: usize, mut rng: Rng) {
    loop {
        let stripe = rng.below((BLOCKS / STRIPE / CLIENTS) as u64) as usize * CLIENTS + number;
        let skip = rng.below(STRIPE as u64) as usize;
        let count = 1 + rng.below((STRIPE - skip) as u64) as usize;
        let first = stripe * STRIPE + skip;
        let at = (FIRST + first as u64) * BLOCK_BYTES;
        let fua = rng.below(4) == 0;
        match rng.below(10) {
            0..4 => {
                let stamp = model.stamps.get() + 1;
                model.stamps.set(stamp);
                model.ask(first, count, |at| Change::Write((stamp << 20) + at as u64 + 1));
                device.write(at, fill(count * BLOCK_LEN, stamp), fua).await.unwrap();
                model.answer(first, count, fua);
            }
            4 => {
                model.ask(first, count, |_| Change::Discard);
                let len = count as u64 * BLOCK_BYTES;
                device.discard(at, len, fua).await.unwrap();
                model.answer(first, count, fua);
                // Its object may be deleted meanwhile.
                check(&device, &model, first, count).await;
            }
            5 => {
                let answered = model.answered();
                device.flush().await.unwrap();
                model.flushed(&answered);
            }
            6 => rt::sleep(Nanos::from_millis(rng.below(100))).await,
            // Deletes what earlier processes have left, beside what this one stores.
            7 if number == 0 => {
                let reserve = ReservationChange::Reserve { key: KEY };
                device.change_reservations(reserve).await.unwrap();
            }
            _ => check(&device, &model, first, count).await,
        }
    }
}

/// The device after a power cut, with what this machine had reserved.
async fn opened_again(bucket: &Rc<Bucket>) -> Rc<ObjectDevice> {
    loop {
        let device = open(bucket, 1).await;
        let register = ReservationChange::Register { key: KEY };
        // A late request of the process before may come in between.
        if device.change_reservations(register).await.is_ok() {
            let reserve = ReservationChange::Reserve { key: KEY };
            device.change_reservations(reserve).await.unwrap();
            return device;
        }
    }
}

/// A store that fails in no way, and takes as long as one that does.
fn slow() -> BucketConfig {
    let BucketConfig { least_latency, latency_span, .. } = stormy();
    BucketConfig { least_latency, latency_span, ..BucketConfig::calm() }
}

/// Requests until the power fails.
fn until_cut(bucket: &Rc<Bucket>, model: &Rc<Model>, seed: Seed) {
    let (bucket, model) = (bucket.clone(), model.clone());
    let outcome = Runtime::simulated(seed.0).run(async move {
        bucket.restart();
        let device = opened_again(&bucket).await;
        model.check_after_cut(&stamps_at(&device, 0, BLOCKS).await);
        for number in 0..CLIENTS {
            let rng = seed.derive(&format!("client {number}")).rng();
            drop(rt::spawn(client(device.clone(), model.clone(), number, rng)));
        }
        rt::sleep(Nanos::from_millis(seed.derive("cut").rng().below(1200))).await;
        rt::halt();
        rt::yield_now().await;
    });
    assert!(outcome.is_none());
}

#[test]
fn requests_beside_each_other_are_as_a_model_says_over_power_cuts() {
    for seed in (0..32).map(Seed) {
        let bucket = Bucket::new(if seed.0 % 2 == 0 { slow() } else { stormy() }, seed);
        let model = Model::new();
        let new = bucket.clone();
        Runtime::simulated(seed.0).block_on(async move {
            take(&*open(&new, 1).await, KEY.0, None).await;
        });
        for boot in 0..8 {
            until_cut(&bucket, &model, seed.derive(&format!("boot {boot}")));
        }
        // A seed of its own: a process draws its number as a writer from it.
        Runtime::simulated(seed.derive("end").0).block_on(async move {
            bucket.restart();
            bucket.set_config(BucketConfig::calm());
            let device = opened_again(&bucket).await;
            model.check_after_cut(&stamps_at(&device, 0, BLOCKS).await);
            // Late requests arrive, and what they have left is deleted when the device is taken.
            rt::sleep(Nanos::from_secs(600)).await;
            drop(device);
            let device = opened_again(&bucket).await;
            device.flush().await.unwrap();
            rt::sleep(Nanos::from_secs(60)).await;
            let stored = bucket.names().into_iter().filter(|name| name.starts_with("data/"));
            let stats = device.stats();
            assert_eq!((stored.count() as u64, stats.waiting_bytes), (stats.objects, 0));
        });
    }
}
