//! Takeovers between two machines: the first is paused at any command, or its devices hang, and the
//! second imports the pool.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, Operation};
use forebay_format::checksum::crc64;
use forebay_format::label::{CONFIG_SLOT_BYTES, HEARTBEAT_OFFSET_BYTES, Heartbeat, LABEL_BYTES};
use forebay_multihost::{read_heartbeat, write_heartbeat};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Probe, Script};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, scripted};
use super::{expect, names, spec, stamp, volume};
use crate::labels::{read_label, write_config, write_root};
use crate::spec::ImportOptions;
use crate::status::{Health, ScanPhase, VdevStatus};
use crate::{ImportError, Opener, Pool};

const SIZE: u64 = 64 << 20;
const DEVICES: &[&str] = &["a", "b", "l"];

/// What one machine sees of devices that several can reach.
#[derive(Default)]
struct View {
    /// Commands that devices have completed.
    commands: Cell<u64>,
    /// The machine is paused after this many commands.
    stop_after: Cell<Option<u64>>,
    /// Devices that hang for this machine.
    hung: RefCell<BTreeSet<String>>,
    /// How long a device takes to answer a read.
    read_takes: Cell<Nanos>,
}

impl Script for View {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            while self.hung.borrow().contains(command.device) {
                rt::sleep(Nanos::from_millis(10)).await;
            }
            if command.operation == Operation::Read {
                rt::sleep(self.read_takes.get()).await;
            }
            Decision::Run
        })
    }

    /// Counts a command that the device has completed. A machine that is paused here receives the
    /// completion when it resumes.
    fn after<'a>(&'a self, _: Command<'a>) -> Answer<'a, ()> {
        Box::pin(async move {
            let commands = self.commands.get() + 1;
            self.commands.set(commands);
            if self.stop_after.get() == Some(commands) {
                // Time passes before any other task of this machine runs.
                rt::suspend(Nanos::from_secs(60));
                rt::halt();
                rt::yield_now().await;
            }
        })
    }
}

fn machine(rack: &Rc<Rack>, host: u64) -> (Rc<dyn Opener>, Rc<View>) {
    let view = Rc::new(View::default());
    (scripted(rack.host(host), view.clone()), view)
}

/// A mirror with a log device, and its volume.
async fn create(opener: Rc<dyn Opener>) -> (Rc<Pool>, Device) {
    let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    pool.create_volume(&volume(4 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

async fn import(opener: Rc<dyn Opener>) -> Result<Rc<Pool>, ImportError> {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    Pool::import(opener, &names(DEVICES), "tank", &options).await
}

/// A pool that was not exported, with records in its log.
fn left_behind(rack: &Rc<Rack>) {
    let opener = rack.host(1);
    Runtime::simulated(1).block_on(async move {
        let (pool, v) = create(opener).await;
        v.write(0, stamp(65536, 1), true).await.unwrap();
        pool.sync().await.unwrap();
        v.write(65536, stamp(65536, 2), true).await.unwrap();
    });
}

/// The second machine, which has imported the pool.
struct Second {
    runtime: Runtime,
    pool: Rc<Pool>,
    v: Device,
}

fn take(rack: &Rc<Rack>, seed: u64) -> Result<Second, ImportError> {
    let runtime = Runtime::simulated(seed);
    let opener = rack.host(2);
    let (pool, v) = runtime.block_on(async move {
        let pool = import(opener).await?;
        let v = pool.open_volume("v").unwrap();
        for round in 0..4 {
            v.write(round << 16, stamp(65536, 10 + round), true).await.unwrap();
        }
        pool.sync().await.unwrap();
        v.write(4 << 16, stamp(65536, 14), true).await.unwrap();
        Ok::<_, ImportError>((pool, v))
    })?;
    Ok(Second { runtime, pool, v })
}

async fn holds_all(v: &Device) {
    for round in 0..5 {
        expect(v, round << 16, &stamp(65536, 10 + round)).await;
    }
}

/// Checks, after the first machine has resumed, that the second one's pool is unharmed and stays
/// so.
fn judge(rack: &Rc<Rack>, second: Second, at: u64) {
    let Second { runtime, pool, v } = second;
    let crash = at % 2 == 0;
    runtime.block_on(async move {
        rt::sleep(Nanos::from_secs(3)).await;
        holds_all(&v).await;
        assert_eq!(pool.summary().health, Health::Online, "stopped after {at}");
        if !crash {
            drop(v);
            pool.export().await.unwrap();
        }
    });
    drop(runtime);
    let opener = rack.host(2);
    Runtime::simulated(at + 20_000).block_on(async move {
        let pool = import(opener).await.unwrap_or_else(|e| panic!("stopped after {at}: {e}"));
        holds_all(&pool.open_volume("v").unwrap()).await;
        pool.scrub().await.unwrap();
        while pool.scan_status().unwrap().state == ScanPhase::InProgress {
            rt::sleep(Nanos::from_millis(100)).await;
        }
        assert_eq!(pool.scan_status().unwrap().errors, 0, "stopped after {at}");
        pool.export().await.unwrap();
    });
}

// What an import has read before the owner fell silent is out of date: the log has begun anew, and
// segments of the map journal have been discarded.
#[test]
fn pool_that_changed_while_it_was_watched_is_read_again() {
    let rack = Rack::new(DEVICES, SIZE);
    let opener = rack.host(1);
    let first = Runtime::simulated(1);
    let (pool, v) = first.block_on(async move { create(opener).await });
    let outcome = Rc::new(RefCell::new(None));
    let (told, opener) = (outcome.clone(), rack.host(2));
    let runtime = Runtime::simulated(2);
    runtime.block_on(async move {
        rt::spawn_detached(Box::pin(async move {
            let imported = import(opener).await;
            told.replace(Some(imported));
        }));
        rt::sleep(Nanos::from_secs(1)).await;
    });
    let (owned, of_owner) = (pool.clone(), v.clone());
    first.block_on(async move {
        for round in 0..5 {
            of_owner.write(round << 16, stamp(65536, 10 + round), true).await.unwrap();
            owned.sync().await.unwrap();
        }
    });
    runtime.block_on(async { rt::sleep(Nanos::from_secs(60)).await });
    let imported = outcome.take().expect("the import has ended").unwrap();
    let of_next = imported.open_volume("v").unwrap();
    runtime.block_on(async move { holds_all(&of_next).await });
    drop((pool, v, imported));
    drop((first, runtime));
}

// A paused import has no heartbeat task yet that could find the next owner: its claim does.
#[test]
fn import_paused_at_any_command_does_not_harm_the_next_owner() {
    let mut taken = 0;
    for at in (1..).step_by(7) {
        let rack = Rack::new(DEVICES, SIZE);
        left_behind(&rack);
        let (opener, view) = machine(&rack, 3);
        view.stop_after.set(Some(at));
        // A seed of its own: two owners must not draw the same nonce.
        let first = Runtime::simulated(at + 10_000);
        if first.run(import(opener)).is_some() {
            break;
        }
        let Ok(second) = take(&rack, at) else { continue };
        taken += 1;
        for _ in 0..250 {
            first.block_on(async { rt::sleep(Nanos::from_millis(100)).await });
            second.runtime.block_on(async { rt::sleep(Nanos::from_millis(100)).await });
        }
        drop(first);
        judge(&rack, second, at);
    }
    assert!(taken > 10, "{taken}");
}

/// Checks that a pool that was taken over has stopped and does not call its devices faulty.
fn blames_no_device(pool: &Pool, at: u64) {
    let status = pool.status();
    assert_eq!(status.state, Health::Suspended, "stopped after {at}");
    let mut nodes: Vec<&VdevStatus> = status.groups.iter().chain(&status.logs).collect();
    while let Some(node) = nodes.pop() {
        nodes.extend(&node.children);
        let (state, errors) = (node.state, node.write_errors);
        let is_device = node.children.is_empty();
        assert!(!is_device || state == Health::Online, "stopped after {at}: {}", node.name);
        assert_eq!(errors, 0, "stopped after {at}: errors of {}", node.name);
    }
}

// The old owner's kernel may complete writes while it is paused: they must not be acknowledged.
#[test]
fn owner_paused_at_any_command_acknowledges_nothing_that_the_next_owner_lacks() {
    const STRIDE: u64 = 4096;
    let mut begun = 0;
    for at in (1..=240).step_by(7) {
        let rack = Rack::new(DEVICES, SIZE);
        let (opener, view) = machine(&rack, 1);
        let answered = Rc::new(Cell::new(0));
        let first = Runtime::simulated(at + 10_000);
        let (here, told) = (view.clone(), answered.clone());
        let old: Rc<RefCell<Option<Rc<Pool>>>> = Rc::default();
        let owned = old.clone();
        let owner = async move {
            let (pool, v) = create(opener).await;
            owned.replace(Some(pool.clone()));
            here.stop_after.set(Some(here.commands.get() + at));
            for round in 0.. {
                let (offset, data) = (round % 1000 * STRIDE, stamp(STRIDE as usize, 100 + round));
                if v.write(offset, data, true).await.is_err() {
                    break;
                }
                told.set(round + 1);
                if round % 10 == 9 {
                    pool.sync().await.ok();
                }
            }
        };
        assert!(first.run(owner).is_none(), "it is paused");
        let before = answered.get();
        begun += u64::from(before > 0);
        let opener = rack.host(2);
        let runtime = Runtime::simulated(at + 20_000);
        let (pool, v) = runtime.block_on(async move {
            let pool = import(opener).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            for round in 0..before {
                expect(&v, round % 1000 * STRIDE, &stamp(STRIDE as usize, 100 + round)).await;
            }
            for round in 0..5 {
                v.write(round << 16, stamp(65536, 10 + round), true).await.unwrap();
            }
            (pool, v)
        });
        for _ in 0..100 {
            first.block_on(async { rt::sleep(Nanos::from_millis(100)).await });
            runtime.block_on(async { rt::sleep(Nanos::from_millis(100)).await });
        }
        assert_eq!(answered.get(), before, "stopped after {at}: the next owner has read the log");
        first.block_on(async move { blames_no_device(&old.take().expect("created"), at) });
        drop(first);
        judge(&rack, Second { runtime, pool, v }, at);
    }
    assert!(begun > 10, "{begun}");
}

/// Freezes a machine, whose clocks stand still then, at one of the reads of its import that follow
/// its claim.
#[derive(Default)]
struct FreezesReading {
    has_claimed: Cell<bool>,
    reads: Cell<u64>,
    at: u64,
    /// Changes other than heartbeats.
    changes: Cell<u64>,
}

impl Script for FreezesReading {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_heartbeat = command.offset_bytes == HEARTBEAT_OFFSET_BYTES;
        let is_change = command.changes_data();
        self.has_claimed.set(self.has_claimed.get() || is_change && is_heartbeat);
        self.changes.set(self.changes.get() + u64::from(is_change && !is_heartbeat));
        Box::pin(async move {
            if command.operation == Operation::Read {
                rt::sleep(Nanos::from_millis(1)).await;
            }
            Decision::Run
        })
    }

    fn after<'a>(&'a self, command: Command<'a>) -> Answer<'a, ()> {
        Box::pin(async move {
            let is_heartbeat = command.offset_bytes == HEARTBEAT_OFFSET_BYTES;
            if command.operation == Operation::Read && self.has_claimed.get() && !is_heartbeat {
                self.reads.set(self.reads.get() + 1);
                if self.reads.get() == self.at && self.changes.get() == 0 {
                    rt::halt();
                    rt::yield_now().await;
                }
            }
        })
    }
}

// Its heartbeat is valid by its clocks, so only a look at the devices before the first change shows
// the next owner.
#[test]
fn import_frozen_while_it_reads_writes_nothing_once_another_owner_has_the_pool() {
    let mut frozen = 0;
    // A heartbeat that is due with the first reads is not checked again before it is written.
    for at in (9..).step_by(4) {
        let rack = Rack::new(DEVICES, SIZE);
        left_behind(&rack);
        let script = Rc::new(FreezesReading { at, ..FreezesReading::default() });
        let opener = scripted(rack.host(3), script.clone());
        let first = Runtime::simulated(at + 10_000);
        if first.run(import(opener)).is_some() {
            break;
        }
        frozen += 1;
        let second = take(&rack, at).expect("the first one is silent");
        for _ in 0..50 {
            first.block_on(async { rt::sleep(Nanos::from_millis(100)).await });
            second.runtime.block_on(async { rt::sleep(Nanos::from_millis(100)).await });
        }
        assert_eq!(script.changes.get(), 0, "frozen at read {at}");
        drop(first);
        judge(&rack, second, at);
    }
    assert!(frozen > 10, "{frozen}");
}

/// A machine whose first reads of the heartbeat on `b` fail.
struct MissesHeartbeats {
    left: Cell<u64>,
}

impl Script for MissesHeartbeats {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_heartbeat = command.device == "b" && command.offset_bytes == HEARTBEAT_OFFSET_BYTES;
        let fails = command.operation == Operation::Read && is_heartbeat && self.left.get() > 0;
        self.left.set(self.left.get() - u64::from(fails));
        let decision =
            if fails { Decision::Fail(ErrorKind::Os { errno: 5 }) } else { Decision::Run };
        Box::pin(std::future::ready(decision))
    }
}

/// Writes the heartbeat of an import that has written no root to a device.
async fn leave_claim(rack: &Rc<Rack>, name: &str, nonce: u64, beat: u64) {
    let pool = read_label(&rack.device(name)).await.configs[0].0.pool;
    let claim = Heartbeat { pool, nonce, host: 1, beat };
    write_heartbeat(&rack.device(name), &claim).await.unwrap();
}

// Imports that were cut short have left their heartbeats, and one of these cannot be read at first.
#[test]
fn import_takes_over_a_claim_whose_heartbeat_it_could_not_read() {
    for (others, missed) in [(&["a"][..], 1), (&["a"], 2), (&[], 1), (&[], 2)] {
        let rack = Rack::new(DEVICES, SIZE);
        left_behind(&rack);
        let opener = scripted(rack.host(1), Rc::new(MissesHeartbeats { left: Cell::new(missed) }));
        Runtime::simulated(2).block_on(async move {
            leave_claim(&rack, "b", 77, 0).await;
            for name in others {
                leave_claim(&rack, name, 78, 0).await;
            }
            let imported = import(opener).await;
            let pool = imported.unwrap_or_else(|e| panic!("{others:?}, missed {missed}: {e}"));
            let v = pool.open_volume("v").unwrap();
            expect(&v, 0, &stamp(65536, 1)).await;
            expect(&v, 65536, &stamp(65536, 2)).await;
            pool.export().await.unwrap();
        });
    }
}

// The other import goes on, and one of its heartbeats cannot be read at first.
#[test]
fn import_leaves_a_living_claim_whose_heartbeat_it_could_not_read() {
    for (claimed, missed) in [(&["b"][..], 1), (&["a", "b"], 1), (&["a", "b"], 3)] {
        let rack = Rack::new(DEVICES, SIZE);
        left_behind(&rack);
        let opener = scripted(rack.host(1), Rc::new(MissesHeartbeats { left: Cell::new(missed) }));
        Runtime::simulated(2).block_on(async move {
            for name in claimed {
                leave_claim(&rack, name, 77, 0).await;
            }
            let lives = rack.clone();
            drop(rt::spawn(async move {
                for beat in 1.. {
                    rt::sleep(Nanos::from_secs(1)).await;
                    for name in claimed {
                        leave_claim(&lives, name, 77, beat).await;
                    }
                }
            }));
            let error = import(opener).await.err().expect("refused");
            assert_kind!(error.kind, InUseElsewhere { .. });
            for name in claimed {
                let held = read_heartbeat(&rack.device(name)).await.unwrap();
                assert_eq!(held.map(|held| held.nonce), Some(77), "{name} is not written over");
            }
        });
    }
}

// The heartbeat was watched only when the import claimed the devices.
#[test]
fn import_that_watched_late_gives_way_to_a_heartbeat_over_its_own() {
    let rack = Rack::new(DEVICES, SIZE);
    left_behind(&rack);
    let opener = scripted(rack.host(1), Rc::new(MissesHeartbeats { left: Cell::new(1) }));
    Runtime::simulated(2).block_on(async move {
        leave_claim(&rack, "b", 77, 0).await;
        let theirs = rack.clone();
        drop(rt::spawn(async move {
            rt::sleep(Nanos::from_secs(5)).await;
            leave_claim(&theirs, "a", 78, 0).await;
        }));
        let error = import(opener).await.err().expect("refused");
        assert_kind!(error.kind, TakenMeanwhile);
    });
}

#[test]
fn owner_whose_first_devices_hang_is_seen_in_use() {
    for hung in [&["a"][..], &["a", "b"]] {
        Runtime::simulated(1).block_on(async move {
            let rack = Rack::new(DEVICES, SIZE);
            let (opener, view) = machine(&rack, 1);
            let (pool, v) = create(opener).await;
            rt::sleep(Nanos::from_secs(5)).await;
            *view.hung.borrow_mut() = hung.iter().map(|name| (*name).to_owned()).collect();
            rt::sleep(Nanos::from_secs(5)).await;
            // A write to the log needs none of the devices that hang.
            let written = v.write(0, stamp(4096, 1), true).await;
            assert!(written.is_ok(), "{hung:?}: {}", pool.why_ended());
            let error = import(rack.host(2)).await.err().expect("refused");
            assert_kind!(error.kind, InUseElsewhere { .. });
            v.write(4096, stamp(4096, 2), true).await.unwrap();
        });
    }
}

// Each answer comes after the poll that asked for it.
#[test]
fn owner_whose_devices_are_always_slow_keeps_the_pool() {
    for seed in 1..=24 {
        Runtime::simulated(seed).block_on(async move {
            let rack = Rack::new(DEVICES, SIZE);
            let (opener, view) = machine(&rack, 1);
            let (pool, v) = create(opener).await;
            view.read_takes.set(Nanos::from_millis(1600));
            for round in 0..60 {
                let written = v.write(0, stamp(4096, round), true).await;
                assert!(written.is_ok(), "{}", pool.why_ended());
                rt::sleep(Nanos::from_millis(500)).await;
            }
            // So slow that no answer is valid: writes wait, and no device is blamed for that.
            view.read_takes.set(Nanos::from_secs(4));
            rt::sleep(Nanos::from_secs(10)).await;
            let late = rt::spawn({
                let v = v.clone();
                async move { v.write(0, stamp(4096, 99), true).await }
            });
            rt::sleep(Nanos::from_secs(60)).await;
            assert!(!late.is_finished());
            view.read_takes.set(Nanos::from_millis(1600));
            assert!(late.await.is_ok(), "{}", pool.why_ended());
            expect(&v, 0, &stamp(4096, 99)).await;
            // Reads of before take four seconds yet.
            rt::sleep(Nanos::from_secs(10)).await;
            let error = import(rack.host(2)).await.err().expect("refused");
            assert_kind!(error.kind, InUseElsewhere { .. });
        });
    }
}

/// An owner that changes the configuration, and writes a root, before a reader's read number `at`.
struct ChangesAtRead {
    inner: Device,
    at: u64,
    reads: Cell<u64>,
}

impl Script for ChangesAtRead {
    fn before<'a>(&'a self, _: Command<'a>) -> Answer<'a, Decision> {
        self.reads.set(self.reads.get() + 1);
        Box::pin(async move {
            if self.reads.get() == self.at {
                let label = read_label(&self.inner).await;
                let (envelope, mut config) = label.configs[0].clone();
                let mut root = label.roots[0].clone();
                config.generation += 1;
                root.commit.0 += 1;
                root.config_generation = config.generation;
                root.config_sum = crc64(&config.encode());
                write_config(&self.inner, envelope.device, &config).await.unwrap();
                write_root(&self.inner, &root).await.unwrap();
            }
            Decision::Run
        })
    }
}

#[test]
fn a_label_that_changes_while_it_is_read_has_the_configuration_of_its_newest_root() {
    let rack = Rack::new(DEVICES, SIZE);
    left_behind(&rack);
    Runtime::simulated(2).block_on(async move {
        let inner = rack.device("a");
        for at in 1.. {
            let script = ChangesAtRead { inner: inner.clone(), at, reads: Cell::new(0) };
            let script = Rc::new(script);
            let device: Device = Probe::new(inner.clone(), script.clone());
            let label = read_label(&device).await;
            let root = &label.roots[0];
            let config = label.config(root.config_generation, root.config_sum);
            assert!(config.is_some(), "changed before read {at}: no configuration for {root:?}");
            if script.reads.get() < at {
                assert!(at > 5, "{at}");
                break;
            }
        }
    });
}

/// Fails reads of the configuration slot that begins so far into each label area.
struct SlotUnreadable(u64);

impl Script for SlotUnreadable {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_slot = [0, SIZE - LABEL_BYTES].map(|area| area + self.0);
        let fails = command.operation == Operation::Read && is_slot.contains(&command.offset_bytes);
        let decision =
            if fails { Decision::Fail(ErrorKind::Os { errno: 5 }) } else { Decision::Run };
        Box::pin(std::future::ready(decision))
    }
}

/// Machine 2 takes over the pool of `a`, and cannot read this configuration slot.
async fn take_over_without(rack: &Rc<Rack>, slot: u64) -> Result<Rc<Pool>, ImportError> {
    let opener = scripted(rack.host(2), Rc::new(SlotUnreadable(slot)));
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    Pool::import(opener, &names(&["a"]), "tank", &options).await
}

// Its owner may be writing them at this moment.
#[test]
fn a_pool_whose_labels_do_not_fit_each_other_is_watched_before_it_is_refused() {
    let rack = Rack::new(&["a"], SIZE);
    let with_owner = rack.clone();
    let slot = Runtime::simulated(1).block_on(async move {
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(with_owner.host(1), "tank", &options).await.unwrap();
        pool.set("dirty_limit", "4M").await.unwrap();
        pool.sync().await.unwrap();
        let label = read_label(&with_owner.device("a")).await;
        let slot = label.roots[0].config_generation % 2 * CONFIG_SLOT_BYTES;
        let refused = take_over_without(&with_owner, slot).await.err().unwrap();
        assert_kind!(refused.kind, InUseElsewhere { .. });
        slot
    });
    Runtime::simulated(2).block_on(async move {
        let refused = take_over_without(&rack, slot).await.err().unwrap();
        assert_kind!(refused.kind, NoConfiguration { .. });
    });
}
