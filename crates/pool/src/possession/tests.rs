use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{BlockDevice, Device, DeviceError, ErrorKind, IoBuf, MemoryDevice, Operation};
use forebay_format::label::{Heartbeat, LogMark};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_units::Nanos;

use super::{Claim, Fenced, Gate, Possession};
use crate::import::device_match::{Found, find_devices};
use crate::labels::{read_beat, write_beat};
use crate::spec::{GroupSpec, ImportOptions, PoolSpec, Redundancy};
use crate::status::Health;
use crate::{Opener, Pool, PoolError};

/// One machine's view of devices that several can reach; no locks between them.
struct Machine {
    shelf: Rc<RefCell<BTreeMap<String, Device>>>,
    host: u64,
}

impl Opener for Machine {
    fn open(&self, path: &str) -> Result<Device, DeviceError> {
        let found = self.shelf.borrow().get(path).cloned();
        found.ok_or_else(|| DeviceError::new(path, Operation::Open, 0, 0, ErrorKind::Gone))
    }
    fn host(&self) -> u64 {
        self.host
    }
}

fn shelf() -> Rc<RefCell<BTreeMap<String, Device>>> {
    let device = |name: &str| {
        let device: Device = Rc::new(MemoryDevice::new(name, 96 << 20));
        (name.to_owned(), device)
    };
    Rc::new(RefCell::new(["a", "b"].map(device).into()))
}

fn paths() -> Vec<String> {
    vec!["a".to_owned(), "b".to_owned()]
}

async fn create(machine: Machine) -> Rc<Pool> {
    let group = GroupSpec { redundancy: Redundancy::Mirror, devices: paths() };
    let spec = PoolSpec { groups: vec![group], ..PoolSpec::default() };
    Pool::create(Rc::new(machine), "p", &spec).await.expect("a pool")
}

async fn import(machine: Machine, force: bool) -> Result<Rc<Pool>, PoolError> {
    let options = ImportOptions { force, ..ImportOptions::default() };
    Pool::import(Rc::new(machine), &paths(), "p", &options).await
}

/// A fenced device, and a word for each write that has ended: whether it succeeded.
fn fenced() -> (Rc<Fenced>, Rc<Possession>, Rc<RefCell<Vec<bool>>>) {
    let possession = Possession::new();
    let inner: Device = Rc::new(MemoryDevice::new("a", 1 << 20));
    let device = Rc::new(Fenced { inner, possession: possession.clone() });
    (device, possession, Rc::default())
}

fn write_later(device: &Rc<Fenced>, ended: &Rc<RefCell<Vec<bool>>>) {
    let (device, ended) = (device.clone(), ended.clone());
    drop(rt::spawn(async move {
        let outcome = device.write(0, IoBuf::zeroed(4096).freeze(), true).await;
        ended.borrow_mut().push(outcome.is_ok());
    }));
}

const MOMENT: Nanos = Nanos::from_millis(10);

/// What an owner of `pool` leaves on a device.
fn mark(pool: &Pool, nonce: u64, host: u64, beat: u64) -> Heartbeat {
    Heartbeat { pool: pool.guid(), nonce, host, beat, ..Heartbeat::default() }
}

#[test]
fn who_has_not_looked_for_long_waits_before_writing() {
    Runtime::simulated(1).block_on(async {
        let (device, possession, ended) = fenced();
        rt::sleep(Nanos::from_secs(60)).await;
        write_later(&device, &ended);
        rt::sleep(MOMENT).await;
        assert_eq!(ended.take(), [true], "nobody asks before the heartbeat runs");

        possession.renew(rt::now_with_suspension());
        rt::sleep(Nanos::from_secs(2)).await;
        write_later(&device, &ended);
        rt::sleep(MOMENT).await;
        assert_eq!(ended.take(), [true]);

        // As after a SIGSTOP: the clock has gone on, nothing else has.
        rt::sleep(Nanos::from_secs(2)).await;
        write_later(&device, &ended);
        rt::sleep(Nanos::from_secs(9)).await;
        assert!(ended.take().is_empty());
        possession.renew(rt::now_with_suspension());
        rt::sleep(MOMENT).await;
        assert_eq!(ended.take(), [true]);

        rt::sleep(Nanos::from_secs(9)).await;
        write_later(&device, &ended);
        possession.lose();
        rt::sleep(MOMENT).await;
        assert_eq!(ended.take(), [false]);
        possession.renew(rt::now_with_suspension());
        write_later(&device, &ended);
        rt::sleep(MOMENT).await;
        assert_eq!(ended.take(), [false], "what is lost stays lost");
    });
}

#[test]
fn a_machine_that_was_suspended_looks_before_it_writes_and_gives_no_device_up() {
    Runtime::simulated(1).block_on(async {
        let (device, possession, ended) = fenced();
        possession.renew(rt::now_with_suspension());
        let before = rt::now();
        rt::suspend(Nanos::from_secs(60));
        assert_eq!(rt::now(), before, "deadlines are counted by this clock");
        write_later(&device, &ended);
        rt::sleep(MOMENT).await;
        assert!(ended.take().is_empty(), "another may have come meanwhile");
        possession.renew(rt::now_with_suspension());
        rt::sleep(MOMENT).await;
        assert_eq!(ended.take(), [true]);
    });
}

// The kernel may hold a write of a process that is stopped, and end it when that goes on.
#[test]
fn a_write_that_ends_after_a_gap_counts_when_the_heartbeat_has_been_looked_at() {
    for another_came in [false, true] {
        Runtime::simulated(1).block_on(async move {
            let (kernel, held, _) = fenced();
            let possession = Possession::new();
            let inner: Device = kernel;
            let device = Rc::new(Fenced { inner, possession: possession.clone() });
            let ended = Rc::default();
            possession.renew(rt::now_with_suspension());
            held.renew(rt::now_with_suspension());
            rt::sleep(Nanos::from_secs(4)).await;
            possession.renew(rt::now_with_suspension());
            write_later(&device, &ended);
            rt::sleep(Nanos::from_secs(4)).await;
            held.renew(rt::now_with_suspension());
            rt::sleep(MOMENT).await;
            assert!(ended.take().is_empty(), "a new owner may have read before it was written");
            match another_came {
                true => possession.lose(),
                false => possession.renew(rt::now_with_suspension()),
            }
            rt::sleep(MOMENT).await;
            assert_eq!(ended.take(), [!another_came]);
        });
    }
}

// What waited at the fence would write to devices that nobody looks at any more.
#[test]
fn a_pool_that_has_stopped_writes_no_more_and_beats_until_its_last_write_has_ended() {
    Runtime::simulated(1).block_on(async {
        let shelf = shelf();
        let pool = create(Machine { shelf: shelf.clone(), host: 1 }).await;
        let possession = pool.gate.possession.clone();
        // A device that answers when `held` is sure.
        let (slow, held, ended) = fenced();
        let own = Rc::new(Fenced { inner: slow, possession: possession.clone() });
        rt::sleep(Nanos::from_secs(4)).await;
        held.known_at.set(Some(Nanos(0)));
        write_later(&own, &ended);
        rt::sleep(MOMENT).await;
        pool.stop("it was asked to");
        rt::sleep(Nanos::from_secs(2)).await;
        assert!(ended.borrow().is_empty());
        assert!(!possession.ended.get(), "a device has been given a write");
        held.renew(rt::now_with_suspension());
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(ended.take(), [true]);
        assert!(possession.ended.get());
        held.renew(rt::now_with_suspension());
        write_later(&own, &ended);
        rt::sleep(MOMENT).await;
        assert_eq!(ended.take(), [false], "nobody looks any more");
    });
}

#[test]
fn an_owner_that_finds_another_stops_and_writes_no_more() {
    Runtime::simulated(1).block_on(async {
        let shelf = shelf();
        let pool = create(Machine { shelf: shelf.clone(), host: 1 }).await;
        rt::sleep(Nanos::from_secs(3)).await;
        assert_eq!(pool.summary().health, Health::Online);
        let device = shelf.borrow()["a"].clone();
        let beat = mark(&pool, pool.nonce ^ 1, 2, 0);
        write_beat(&device, &beat).await.expect("written");
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(pool.summary().health, Health::Suspended);
        let own = pool.label_devices()[0].1.device();
        assert!(own.write(0, IoBuf::zeroed(4096).freeze(), false).await.is_err());
    });
}

#[test]
fn another_machine_is_refused_while_the_owner_lives_and_asked_when_it_is_silent() {
    let shelf = shelf();
    let machine = |host: u64| Machine { shelf: shelf.clone(), host };
    let [first, refused, forced] = [1, 2, 2].map(machine);
    Runtime::simulated(1).block_on(async move {
        let pool = create(first).await;
        for (machine, force) in [(refused, false), (forced, true)] {
            let refused = import(machine, force).await.err().expect("refused").to_string();
            assert!(refused.contains("in use there"), "{refused}");
        }
        assert_eq!(pool.summary().health, Health::Online);
    });
    // The first machine is gone.
    let [refused, forced] = [2, 2].map(machine);
    Runtime::simulated(2).block_on(async move {
        let refused = import(refused, false).await.err().expect("refused").to_string();
        assert!(refused.contains("-f"), "{refused}");
        let pool = import(forced, true).await.expect("imported");
        rt::sleep(Nanos::from_secs(5)).await;
        assert_eq!(pool.summary().health, Health::Online);
        pool.export().await.expect("exported");
    });
}

#[test]
fn after_a_gap_a_beat_of_ours_over_another_is_not_believed() {
    Runtime::simulated(1).block_on(async {
        let shelf = shelf();
        let pool = create(Machine { shelf: shelf.clone(), host: 1 }).await;
        rt::sleep(Nanos::from_millis(4500)).await;
        // Another has marked both, and then a late beat of ours went over the first mark.
        let other = mark(&pool, pool.nonce ^ 1, 2, 0);
        let second = shelf.borrow()["b"].clone();
        write_beat(&second, &other).await.expect("written");
        pool.gate.possession.known_at.set(Some(Nanos(0)));
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(pool.summary().health, Health::Suspended);
    });
}

#[test]
fn an_owner_that_was_stopped_before_its_first_beat_finds_another_too() {
    Runtime::simulated(1).block_on(async {
        let shelf = shelf();
        let pool = create(Machine { shelf: shelf.clone(), host: 1 }).await;
        rt::sleep(Nanos::from_millis(200)).await;
        let other = mark(&pool, pool.nonce ^ 1, 2, 0);
        for name in ["a", "b"] {
            let device = shelf.borrow()[name].clone();
            write_beat(&device, &other).await.expect("written");
        }
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(pool.summary().health, Health::Suspended);
    });
}

#[test]
fn a_late_beat_of_the_owner_before_does_not_stop_the_new_one() {
    let shelf = shelf();
    let machine = |host: u64| Machine { shelf: shelf.clone(), host };
    let [first, second] = [1, 2].map(machine);
    let nonce = Runtime::simulated(1).block_on(async move {
        let pool = create(first).await;
        rt::sleep(Nanos::from_secs(3)).await;
        pool.nonce
    });
    Runtime::simulated(2).block_on(async move {
        let pool = import(second, true).await.expect("imported");
        rt::sleep(Nanos::from_secs(2)).await;
        let device = shelf.borrow()["a"].clone();
        let late = mark(&pool, nonce, 1, 3);
        write_beat(&device, &late).await.expect("written");
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(pool.summary().health, Health::Online);
        let held = read_beat(&device).await.expect("a beat");
        assert_eq!(held.nonce, pool.nonce, "the new owner's mark is there again");
        // A third one is nobody's predecessor.
        let third = mark(&pool, pool.nonce ^ 1, 3, 0);
        write_beat(&device, &third).await.expect("written");
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(pool.summary().health, Health::Suspended);
    });
}

#[test]
fn after_a_gap_one_device_is_looked_at_twice() {
    for another_beats in [true, false] {
        Runtime::simulated(1).block_on(async move {
            let shelf = shelf();
            let machine = Machine { shelf: shelf.clone(), host: 1 };
            let devices = vec!["a".to_owned()];
            let group = GroupSpec { redundancy: Redundancy::Raid0, devices };
            let spec = PoolSpec { groups: vec![group], ..PoolSpec::default() };
            let pool = Pool::create(Rc::new(machine), "p", &spec).await.expect("a pool");
            rt::sleep(Nanos::from_millis(4500)).await;
            // Another has marked the device, and then a late beat of ours went over the mark.
            pool.gate.possession.known_at.set(Some(Nanos(0)));
            let ended = Rc::new(RefCell::new(None));
            let (own, word) = (pool.label_devices()[0].1.device(), ended.clone());
            drop(rt::spawn(async move {
                let outcome = own.write(8 << 20, IoBuf::zeroed(4096).freeze(), false).await;
                *word.borrow_mut() = Some(outcome.is_ok());
            }));
            rt::sleep(Nanos::from_secs(1)).await;
            assert_eq!(*ended.borrow(), None, "nothing is written after one look");
            if another_beats {
                let other = mark(&pool, pool.nonce ^ 1, 2, 1);
                let device = shelf.borrow()["a"].clone();
                write_beat(&device, &other).await.expect("written");
            }
            rt::sleep(Nanos::from_secs(3)).await;
            let health = if another_beats { Health::Suspended } else { Health::Online };
            assert_eq!(pool.summary().health, health);
            assert_eq!(*ended.borrow(), Some(!another_beats));
        });
    }
}

#[test]
fn an_import_that_is_cut_short_keeps_what_heartbeats_say_of_the_log() {
    let shelf = shelf();
    let machine = |host: u64| Machine { shelf: shelf.clone(), host };
    let [first, second] = [1, 1].map(machine);
    let said = Runtime::simulated(1).block_on(async {
        let pool = create(first).await;
        rt::sleep(Nanos::from_millis(2500)).await;
        pool.log.mark()
    });
    assert_ne!(said.epoch, 0);
    Runtime::simulated(2).block_on(async move {
        let gate = Gate::new(Rc::new(second));
        let found = find_devices(&gate, &paths()).await;
        let found: Vec<&Found> = found.iter().collect();
        let mine = Heartbeat { nonce: 7, ..found[0].label.beat.expect("a mark") };
        let mine = Heartbeat { log: LogMark::default(), ..mine };
        let claim = Claim::new(&found, "p", &Possession::new(), mine).await;
        drop(claim.expect("nobody else is there"));
        for name in ["a", "b"] {
            let device = shelf.borrow()[name].clone();
            let held = read_beat(&device).await.expect("a beat");
            assert_eq!((held.nonce, held.log), (7, said), "{name}");
        }
    });
}
