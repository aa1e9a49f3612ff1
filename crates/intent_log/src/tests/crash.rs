//! Crash tests: a small pool appends, commits, and loses log devices and power at any device
//! command. Replay must return a prefix of the appended records. The prefix must hold every record
//! that was acknowledged and is not in the main store.

use std::cell::{Cell, RefCell};

use proptest::prelude::*;

use super::disk::Power;
use super::*;
use crate::{LogEvent, ReplayVerdict};
use forebay_rt::{Runtime, random_below, sleep, spawn, sync::Mutex};
use forebay_units::Nanos;

#[derive(Clone, Debug)]
struct Scenario {
    seed: u64,
    rings: usize,
    sides: usize,
    frames_in_flight: usize,
    max_frame_blocks: u32,
    clients: u64,
    appends_each: u64,
    /// A disk, and the number of its first write that fails.
    failure: Option<(usize, u64)>,
    /// Whether an administrator removes a side and returns it.
    reconfigure: bool,
}

/// The state that outlives the process.
struct World {
    power: Rc<Power>,
    disks: Vec<Rc<Disk>>,
    superblock: RefCell<(Vec<u8>, Vec<LogRing>)>,
    appended: RefCell<Vec<Record>>,
    acknowledged: RefCell<Vec<bool>>,
}

struct Pool {
    world: Rc<World>,
    log: IntentLog,
    all_rings: Vec<LogRing>,
    rings: RefCell<Vec<LogRing>>,
    open: Cell<u64>,
    oldest_open: Cell<u64>,
    commit_lock: Mutex<()>,
    stopped: Cell<bool>,
}

impl Pool {
    /// Commits everything so far; with `new_rings`, the log continues on those.
    async fn commit(&self, new_rings: Option<Vec<LogRing>>) {
        let _one_at_a_time = self.commit_lock.lock().await;
        let group = self.open.get();
        self.open.set(group + 1);
        // For a while, writes still go to the closing group.
        sleep(Nanos(random_below(30_000))).await;
        self.oldest_open.set(group + 1);
        let group = TxgId(group);
        let (state, rings) = match &new_rings {
            None => (self.log.state(group), self.rings.borrow().clone()),
            Some(rings) => (self.log.next_state(rings, self.log.epoch() + 1, group), rings.clone()),
        };
        sleep(Nanos(random_below(60_000))).await;
        *self.world.superblock.borrow_mut() = (state.encode(), rings.clone());
        sleep(Nanos(random_below(10_000))).await;
        self.log.release(group);
        if new_rings.is_some() {
            // If another side has failed by now, its event leads to another commit.
            if self.log.resume(&rings, &state).await.is_ok() {
                *self.rings.borrow_mut() = rings;
            }
        }
    }

    async fn watch(self: Rc<Self>) {
        let mut failed = Vec::new();
        loop {
            match self.log.next_event().await {
                LogEvent::SideFailed { device, .. } => failed.push(device),
                LogEvent::Pressure => self.commit(None).await,
                LogEvent::Paused => {
                    while self.log.is_failed() {
                        while let Some(LogEvent::SideFailed { device, .. }) = self.log.take_event()
                        {
                            failed.push(device);
                        }
                        let rings = self.rings.borrow().clone();
                        self.commit(Some(without(&rings, &failed))).await;
                    }
                }
            }
        }
    }

    async fn administer(self: Rc<Self>) {
        while !self.stopped.get() {
            for rings in [without(&self.all_rings, &[DeviceId(0)]), self.all_rings.clone()] {
                sleep(Nanos(random_below(200_000))).await;
                if self.log.is_failed() || self.stopped.get() {
                    return;
                }
                self.log.pause().await;
                self.commit(Some(rings)).await;
            }
        }
    }

    async fn write_for(self: Rc<Self>, client: u64, appends: u64) {
        for i in 0..appends {
            let count = if random_below(4) == 0 { random_below(4) } else { 1 };
            let records: Vec<Record> =
                (0..count).map(|j| self.make((client << 20 | i) << 4 | j)).collect();
            let first = self.world.appended.borrow().len();
            self.world.appended.borrow_mut().extend(records.iter().cloned());
            self.world.acknowledged.borrow_mut().resize(first + records.len(), false);
            let done = self.log.append(records);
            let world = self.world.clone();
            let task = spawn(async move {
                done.await.unwrap();
                let mut acknowledged = world.acknowledged.borrow_mut();
                // An empty append acknowledges all earlier records. Another append acknowledges
                // only its own: a commit may end its wait, but not that of a later group.
                let from = if count == 0 { 0 } else { first };
                acknowledged[from..first + count as usize].fill(true);
            });
            match random_below(8) {
                0..4 => task.await,
                4 => sleep(Nanos(random_below(40_000))).await,
                _ => {}
            }
        }
        self.log.append(Vec::new()).await.unwrap();
    }

    fn make(&self, id: u64) -> Record {
        let oldest = self.oldest_open.get();
        let txg = TxgId(oldest + random_below(self.open.get() - oldest + 1));
        let blocks = match random_below(10) {
            0 => 1 + random_below(40) as u32,
            1 => 4,
            _ => 1,
        };
        let (volume, lba) = (VolumeId(id as u32 % 7), Lba(id));
        if random_below(8) == 0 {
            return Record::zero(volume, txg, lba, blocks);
        }
        Record::write(volume, txg, lba, stamped(id, blocks))
    }
}

fn without(rings: &[LogRing], failed: &[DeviceId]) -> Vec<LogRing> {
    let mut rings = rings.to_vec();
    for ring in &mut rings {
        ring.sides.retain(|side| !failed.contains(&side.device_id));
    }
    rings.retain(|ring| !ring.sides.is_empty());
    rings
}

/// Runs the scenario until its end or the power cut. Returns its steps and the records replayed.
fn run(scenario: &Scenario, cut_at: u64) -> (u64, usize) {
    let Scenario { seed, sides, .. } = *scenario;
    let power = Rc::new(Power::default());
    power.cut_at.set(cut_at);
    let count = scenario.rings * sides;
    let disks: Vec<Rc<Disk>> =
        (0..count).map(|i| Disk::new(i as u32, MIB + 65536, 50, &power)).collect();
    if let Some((disk, write)) = scenario.failure {
        disks[disk % count].fails_from.set(write);
    }
    let ring_at = |i: usize| {
        let sides: Vec<_> = disks[i * sides..][..sides].iter().collect();
        ring(i as u8, MIB, &sides)
    };
    let rings: Vec<LogRing> = (0..scenario.rings).map(ring_at).collect();
    let config = LogConfig {
        frames_in_flight: scenario.frames_in_flight,
        max_frame_bytes: scenario.max_frame_blocks * 4096,
        ..LogConfig::new(POOL)
    };
    let state = IntentLog::empty_state(&config, &rings, 1, TxgId(0), FrameSeq(1));
    let world = Rc::new(World {
        power,
        disks,
        superblock: RefCell::new((state.encode(), rings.clone())),
        appended: RefCell::default(),
        acknowledged: RefCell::default(),
    });
    let runtime = Runtime::simulated(seed);
    let (outer, scenario) = (world.clone(), scenario.clone());
    let ended = runtime.run(async move {
        let pool = Rc::new(Pool {
            world,
            log: IntentLog::start(config, &rings, &state).unwrap(),
            all_rings: rings.clone(),
            rings: RefCell::new(rings),
            open: Cell::new(1),
            oldest_open: Cell::new(1),
            commit_lock: Mutex::new(()),
            stopped: Cell::new(false),
        });
        spawn(pool.clone().watch());
        if scenario.reconfigure {
            spawn(pool.clone().administer());
        }
        let committer = pool.clone();
        spawn(async move {
            while !committer.stopped.get() {
                sleep(Nanos(50_000 + random_below(300_000))).await;
                committer.commit(None).await;
            }
        });
        let clients = (0..scenario.clients)
            .map(|client| spawn(pool.clone().write_for(client, scenario.appends_each)));
        forebay_rt::join_all(clients).await;
        pool.stopped.set(true);
    });
    drop(runtime);
    assert!(ended.is_some() || outer.power.is_cut());
    let mut chance = seed ^ cut_at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for disk in &outer.disks {
        disk.draw_crash_outcome(|| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            chance >> 40
        });
    }
    let steps = outer.power.steps.get();
    outer.power.cut_at.set(0);
    (steps, check(&outer, seed, ended.is_some()))
}

/// Replays from all sides, and from each side alone, because every side holds each acknowledged
/// record. Returns the number of records replayed.
fn check(world: &World, seed: u64, ended: bool) -> usize {
    let (bytes, rings) = world.superblock.borrow().clone();
    let (state, _) = LogState::decode(&bytes).unwrap();
    let sides = rings.iter().map(|ring| ring.sides.len()).max().unwrap_or(0);
    if sides > 1 {
        for side in 0..sides {
            let mut alone = rings.clone();
            for ring in &mut alone {
                ring.sides = vec![ring.sides[side % ring.sides.len()].clone()];
            }
            check_rings(world, seed, ended, &state, alone);
        }
    }
    check_rings(world, seed, ended, &state, rings)
}

fn check_rings(
    world: &World,
    seed: u64,
    ended: bool,
    state: &LogState,
    rings: Vec<LogRing>,
) -> usize {
    let committed = state.committed;
    let state = state.clone();
    let (got, end) = Runtime::simulated(seed).block_on(async move { replay(&rings, &state).await });
    assert!(!matches!(end.verdict, ReplayVerdict::Loss(_)), "{end:?}");
    let appended = world.appended.borrow();
    let acknowledged = world.acknowledged.borrow();
    let expected: Vec<usize> =
        (0..appended.len()).filter(|i| appended[*i].txg > committed).collect();
    assert!(got.len() <= expected.len());
    for (got, at) in got.iter().zip(&expected) {
        let sent = &appended[*at];
        assert!(same(got, sent), "record {at}: {:?} {} is not {:?}", got.lba, got.txg, sent.lba);
    }
    for at in &expected[got.len()..] {
        assert!(!acknowledged[*at], "acknowledged record {at} is missing; {end:?}");
        assert!(!ended, "every append was awaited");
    }
    got.len()
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let shape = (1..4usize, 1..4usize, 1..6usize, prop_oneof![Just(2u32), Just(8), Just(32)]);
    let failure = proptest::option::of((0..9usize, 1..60u64));
    (any::<u64>(), shape, 1..12u64, 1..30u64, failure, any::<bool>()).prop_map(
        |(seed, shape, clients, appends_each, failure, reconfigure)| Scenario {
            seed,
            rings: shape.0,
            sides: shape.1,
            frames_in_flight: shape.2,
            max_frame_blocks: shape.3,
            clients,
            appends_each,
            failure,
            reconfigure: reconfigure && failure.is_none(),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]
    #[test]
    fn replay_is_a_prefix_with_every_acknowledged_record(
        scenario in scenario(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 3),
    ) {
        let (steps, _) = run(&scenario, 0);
        // A scenario without device commands has no step to cut at.
        for cut in cuts.iter().filter(|_| steps > 0) {
            run(&scenario, 1 + cut.index(steps as usize) as u64);
        }
    }
}

fn tiny() -> Scenario {
    Scenario {
        seed: 11,
        rings: 1,
        sides: 2,
        frames_in_flight: 3,
        max_frame_blocks: 4,
        clients: 4,
        appends_each: 14,
        failure: None,
        reconfigure: false,
    }
}

#[test]
fn acknowledged_records_survive_a_power_cut_at_every_command() {
    for scenario in
        [tiny(), Scenario { rings: 2, ..tiny() }, Scenario { reconfigure: true, ..tiny() }]
    {
        let (steps, _) = run(&scenario, 0);
        assert!(steps > 100, "{steps}");
        let mut most_replayed = 0;
        for cut_at in 1..=steps {
            most_replayed = most_replayed.max(run(&scenario, cut_at).1);
        }
        assert!(most_replayed > 5, "some cut must leave records to replay");
    }
}

#[test]
fn acknowledged_records_survive_a_failed_side_and_a_power_cut() {
    for side in 0..2 {
        for write in 1..=30 {
            let scenario = Scenario { failure: Some((side, write)), appends_each: 6, ..tiny() };
            let (steps, _) = run(&scenario, 0);
            for cut_at in (1..=steps).step_by(7) {
                run(&scenario, cut_at);
            }
        }
    }
}

#[test]
fn acknowledged_records_survive_many_wraps_of_a_ring() {
    let scenario = Scenario {
        frames_in_flight: 2,
        max_frame_blocks: 32,
        clients: 30,
        appends_each: 150,
        sides: 1,
        ..tiny()
    };
    let (steps, _) = run(&scenario, 0);
    for cut in 1..40 {
        run(&scenario, steps * cut / 40);
    }
}
