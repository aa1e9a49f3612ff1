use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_rt::Runtime;
use forebay_sim::{CrashPoint, Seed};
use proptest::prelude::*;

use crate::disks::Disks;
use crate::fault_plan::Level;
use crate::generate::{Constraints, generate};
use crate::history::{Change, History};
use crate::reference_pool::{Flaw, Reference};
use crate::refusal::{self, Suspect};
use crate::scenario::{Act, Crash, Fates, MapRot, Scenario};
use crate::stamp::{Fill, Seen, examine, stamp};
use crate::subject::{LogShape, PoolSpec, Raid};
use crate::verdict::{Failure, Kind, Outcome, Tally};
use crate::{run, shrink};

fn one_disk() -> PoolSpec {
    PoolSpec {
        raid: Raid::Raid0,
        log: LogShape::None,
        data_disks: 1,
        groups: 1,
        spare_disks: 0,
        data_bytes: 256 << 20,
        log_bytes: 0,
        segment_bytes: 1 << 20,
        seed: 1,
    }
}

fn reference_scenario(seed: u64) -> Scenario {
    let constraints = Constraints {
        spec: Some(one_disk()),
        level: Some(Level::CrashOnly),
        acts: Some(30),
        admin: true,
        ..Constraints::default()
    };
    generate(Seed(seed), &constraints)
}

#[test]
fn reference_pool_without_flaw_passes_every_seed() {
    let reference = Rc::new(Reference { flaw: Flaw::None });
    for seed in 0..200 {
        let outcome = run(&reference, &reference_scenario(seed));
        assert_eq!(outcome.failure, None, "seed {seed}");
    }
}

#[test]
fn every_flaw_of_the_reference_pool_is_caught() {
    for flaw in Flaw::ALL {
        let reference = Rc::new(Reference { flaw });
        let caught =
            (0..400).find(|seed| run(&reference, &reference_scenario(*seed)).failure.is_some());
        assert!(caught.is_some(), "{flaw:?} was not caught in 400 seeds");
    }
}

#[test]
fn the_same_scenario_gives_the_same_digest() {
    let reference = Rc::new(Reference { flaw: Flaw::None });
    let digests: Vec<u64> =
        (0..20).map(|seed| run(&reference, &reference_scenario(seed)).digest).collect();
    for (seed, digest) in digests.iter().enumerate() {
        assert_eq!(
            run(&reference, &reference_scenario(seed as u64)).digest,
            *digest,
            "seed {seed}"
        );
    }
    let different: std::collections::BTreeSet<_> = digests.iter().collect();
    assert_eq!(different.len(), digests.len());
}

#[test]
fn a_failure_shrinks_and_survives_being_written_down() {
    let reference = Rc::new(Reference { flaw: Flaw::AckBeforeDurable });
    let seed = (0..400)
        .find(|seed| run(&reference, &reference_scenario(*seed)).failure.is_some())
        .unwrap();
    let scenario = reference_scenario(seed);
    let kind = run(&reference, &scenario).failure.unwrap().kind;
    let (small, _) = shrink::shrink(&scenario, kind, 3000, |s| run(&reference, s));
    assert!(small.acts() <= 6, "{} acts are left of {}", small.acts(), scenario.acts());
    let text = serde_json::to_string(&small).unwrap();
    let back: Scenario = serde_json::from_str(&text).unwrap();
    assert_eq!(back, small);
    assert_eq!(run(&reference, &back).failure.unwrap().kind, kind);
}

#[test]
fn reference_pool_survives_crash_at_every_command_and_in_recovery() {
    let reference = Rc::new(Reference { flaw: Flaw::None });
    let mut scenario = reference_scenario(5);
    scenario.boots.truncate(1);
    scenario.boots[0].clients.truncate(3);
    for client in &mut scenario.boots[0].clients {
        client.truncate(8);
    }
    let depth = crate::exhaustive::Depth { second_every: 5, ..Default::default() };
    let report = crate::exhaustive::explore(&reference, &scenario, &depth);
    assert_eq!(report.failure.map(|(_, f)| f), None);
    assert!(
        report.first > 20 && report.second > 20,
        "{report:?}",
        report = (report.first, report.second)
    );
    let flawed = Rc::new(Reference { flaw: Flaw::NoChecksum });
    let report = crate::exhaustive::explore(&flawed, &scenario, &depth);
    let (found, failure) = report.failure.expect("a torn record is believed somewhere");
    assert_eq!(run(&flawed, &found).failure, Some(failure), "the scenario replays alone");
}

#[test]
fn fates_can_be_listed() {
    let crash = Crash::at(CrashPoint::AfterSubmit(3), Fates::Subset(5));
    let text = serde_json::to_string(&crash).unwrap();
    assert_eq!(serde_json::from_str::<Crash>(&text).unwrap(), crash);
}

#[test]
fn a_stale_row_of_the_map_stays_when_it_is_written_over_once() {
    let disks = Disks::new(&reference_scenario(1));
    let block = |word: &[u8]| {
        let mut buf = IoBuf::zeroed(4096);
        buf[..word.len()].copy_from_slice(word);
        buf.freeze()
    };
    let disk = disks.devices()[0].clone();
    let write = |at: u64, word: &'static [u8]| {
        let (disk, data) = (disk.clone(), block(word));
        Runtime::simulated(1).block_on(async move { disk.write(at, data, true).await.unwrap() });
    };
    let holds = |at: u64| {
        let disk = disk.clone();
        let read = async move { disk.read(at, IoBuf::zeroed(4096)).await.unwrap().to_vec() };
        Runtime::simulated(1).block_on(read)
    };
    write(8192, b"FBAYJRNL, of an earlier run");
    write(16384, b"something else");
    disks.keep_map(&[0, 99]);
    write(8192, b"FBAYJRNL, anew");
    write(16384, b"anything");
    assert!(holds(8192).starts_with(b"FBAYJRNL, of an earlier run"));
    assert!(holds(16384).starts_with(b"anything"));
    write(8192, b"FBAYJRNL, once more");
    assert!(holds(8192).starts_with(b"FBAYJRNL, once more"));
}

#[test]
fn what_is_drawn_now_and_then_is_drawn() {
    let constraints = Constraints {
        level: Some(Level::Within),
        admin: true,
        manage: true,
        ..Constraints::default()
    };
    let crash_in_recovery = Constraints { crash_in_recovery: Some(true), ..constraints.clone() };
    let all = |constraints: &Constraints| {
        (0..200).map(|seed| generate(Seed(seed), constraints)).collect::<Vec<_>>()
    };
    let stale = |s: &Scenario| s.boots.iter().any(|boot| !boot.stale_map.is_empty());
    let at_flush = |s: &Scenario| {
        let crashes = s.boots.iter().filter_map(|boot| boot.crash.as_ref());
        crashes.map(|crash| crash.point).any(|point| matches!(point, CrashPoint::AfterFlush(_)))
    };
    let drawn = all(&crash_in_recovery);
    assert!(drawn.iter().filter(|s| stale(s)).count() > 50);
    assert!(drawn.iter().filter(|s| at_flush(s)).count() > 50);
    for (scenario, boot) in drawn.iter().flat_map(|s| s.boots.iter().map(move |b| (s, b))) {
        let data = |disk: &usize| *disk < scenario.spec.data_disks;
        assert!(boot.stale_map.iter().all(data), "{:?}", boot.stale_map);
    }
    let hot = |s: &Scenario| {
        let places = s.boots[0].clients.iter().flatten().filter_map(|act| match act {
            Act::Write { volume, first, .. } => Some((*volume, first / 128)),
            _ => None,
        });
        s.boots[0].clients.len() > 2 && places.collect::<BTreeSet<_>>().len() <= 2
    };
    let usual = all(&constraints);
    assert!(usual.iter().filter(|s| hot(s)).count() > 10);
    assert!(usual.iter().any(|s| s.boots.iter().any(|boot| boot.map_rot.is_some())));
}

#[test]
fn what_strikes_the_map_is_dropped_when_it_does_not_matter() {
    let constraints = Constraints {
        level: Some(Level::Within),
        crash_in_recovery: Some(true),
        admin: true,
        manage: true,
        ..Constraints::default()
    };
    let drawn = (0..200).map(|seed| generate(Seed(seed), &constraints));
    let mut scenario = drawn
        .into_iter()
        .find(|s| s.boots.iter().any(|boot| !boot.stale_map.is_empty()))
        .expect("one of them");
    scenario.boots[0].map_rot = Some(MapRot { pick: 1, blocks: 1, at_byte: 1, mask: 1 });
    let fails = |_: &Scenario| {
        let failure = Failure { kind: Kind::Prefix, message: String::new() };
        let tally = Tally::default();
        Outcome { failure: Some(failure), digest: 0, tally, boot_commands: Vec::new() }
    };
    let (small, _) = shrink::shrink(&scenario, Kind::Prefix, 2000, fails);
    for boot in &small.boots {
        assert!(boot.stale_map.is_empty() && boot.map_rot.is_none() && boot.faults.is_empty());
    }
}

fn write(history: &mut History, first: u64, count: u64) -> u32 {
    let ticket = history.issue(Change::Write, first, count);
    history.complete(ticket, false);
    ticket.number
}

fn seen(numbers: &[u32]) -> Vec<Option<Seen>> {
    let seen = |n: &u32| if *n == 0 { Seen::Zeros } else { Seen::Write(*n) };
    numbers.iter().map(|n| Some(seen(n))).collect()
}

#[test]
fn a_prefix_is_accepted_and_a_hole_is_not() {
    let mut history = History::new("v", 4, 100);
    let a = write(&mut history, 0, 1);
    let b = write(&mut history, 1, 1);
    let c = write(&mut history, 2, 1);
    for fine in [[0, 0, 0, 0], [a, 0, 0, 0], [a, b, 0, 0], [a, b, c, 0]] {
        assert_eq!(history.clone().check_crash(&seen(&fine)), Ok(()));
    }
    for wrong in [[0, b, 0, 0], [a, 0, c, 0], [0, 0, c, 0], [a, b, c, a]] {
        assert!(history.clone().check_crash(&seen(&wrong)).is_err(), "{wrong:?}");
    }
    let now = history.now();
    history.flushed(now);
    assert!(history.clone().check_crash(&seen(&[a, b, 0, 0])).is_err());
    assert!(history.clone().check_crash(&[None, Some(Seen::Write(b)), None, None]).is_ok());
}

#[test]
fn a_write_is_there_whole_or_not_at_all() {
    let mut history = History::new("v", 4, 100);
    let a = history.issue(Change::Write, 0, 4).number;
    assert_eq!(history.clone().check_crash(&seen(&[0; 4])), Ok(()));
    assert_eq!(history.clone().check_crash(&seen(&[a; 4])), Ok(()));
    assert!(history.clone().check_crash(&seen(&[a, a, 0, 0])).is_err());
    let mut pieces = History::new("v", 4, 2);
    let a = pieces.issue(Change::Write, 0, 4).number;
    assert_eq!(pieces.clone().check_crash(&seen(&[0, 0, a, a])), Ok(()));
    assert!(pieces.clone().check_crash(&seen(&[0, a, a, a])).is_err());
}

#[test]
fn writes_in_flight_together_may_be_ordered_either_way_but_not_both() {
    let mut history = History::new("v", 2, 100);
    let a = history.issue(Change::Write, 0, 2).number;
    let b = history.issue(Change::Write, 0, 2).number;
    assert_eq!(history.clone().check_crash(&seen(&[a, a])), Ok(()));
    assert_eq!(history.clone().check_crash(&seen(&[b, b])), Ok(()));
    assert!(history.clone().check_crash(&seen(&[a, b])).is_err(), "a circle");
}

#[test]
fn zeros_need_a_zeroing_and_bring_what_came_before_it() {
    let mut history = History::new("v", 3, 100);
    let a = write(&mut history, 0, 1);
    let b = write(&mut history, 1, 1);
    let ticket = history.issue(Change::Zero, 0, 1);
    history.complete(ticket, false);
    let c = write(&mut history, 2, 1);
    assert_eq!(history.clone().check_crash(&seen(&[0, b, c])), Ok(()));
    assert_eq!(history.clone().check_crash(&seen(&[0, b, 0])), Ok(()));
    assert_eq!(history.clone().check_crash(&seen(&[a, b, 0])), Ok(()));
    assert_eq!(history.clone().check_crash(&seen(&[0, 0, 0])), Ok(()));
    assert!(history.clone().check_crash(&seen(&[a, b, c])).is_err(), "the zeroing is missing");
    let now = history.now();
    history.flushed(now);
    assert!(history.clone().check_crash(&seen(&[0, 0, c])).is_err());
}

#[test]
fn a_read_may_not_see_what_was_replaced() {
    let mut history = History::new("v", 1, 100);
    let a = write(&mut history, 0, 1);
    let b = write(&mut history, 0, 1);
    let now = history.now();
    assert!(history.check_read(now, 0, Seen::Write(a)).is_err());
    assert_eq!(history.check_read(now, 0, Seen::Write(b)), Ok(()));
    let c = history.issue(Change::Write, 0, 1);
    assert_eq!(history.check_read(now, 0, Seen::Write(c.number)), Ok(()));
    assert_eq!(history.check_read(now, 0, Seen::Write(b)), Ok(()));
    history.complete(c, false);
    let later = history.now();
    assert_eq!(history.check_read(now, 0, Seen::Write(b)), Ok(()), "it was issued before");
    assert!(history.check_read(later, 0, Seen::Write(b)).is_err());
    assert!(history.check_read(later, 0, Seen::Garbage).is_err());
    assert!(!history.may_be_hole(later, 0));
}

#[test]
fn a_read_that_takes_long_may_see_what_was_replaced_meanwhile() {
    let mut history = History::new("v", 1, 100);
    let first = write(&mut history, 0, 1);
    let issued = history.read_begins();
    for _ in 0..20 {
        write(&mut history, 0, 1);
        let now = history.now();
        history.flushed(now);
    }
    assert_eq!(history.check_read(issued, 0, Seen::Write(first)), Ok(()));
    history.read_ends(issued);
    write(&mut history, 0, 1);
    assert!(history.check_read(issued, 0, Seen::Write(first)).is_err(), "nobody reads any more");
}

proptest! {
    #[test]
    fn a_stamp_is_read_back_and_any_flip_is_seen(
        volume in any::<u32>(), sector in any::<u64>(), number in 1u32.., noise in any::<bool>(),
        byte in 0usize..512, bit in 0u8..8,
    ) {
        let mut bytes = [0; 512];
        let fill = if noise { Fill::Noise } else { Fill::Zeros };
        stamp(&mut bytes, volume, sector, number, fill);
        prop_assert_eq!(examine(&bytes, volume, sector), Seen::Write(number));
        prop_assert_eq!(
            examine(&bytes, volume, sector ^ 1),
            Seen::Elsewhere { volume, sector, number }
        );
        bytes[byte] ^= 1 << bit;
        prop_assert_eq!(examine(&bytes, volume, sector), Seen::Garbage);
    }

    // Against brute force: a few serial or overlapping changes, any sectors found.
    #[test]
    fn the_prefix_search_agrees_with_trying_everything(
        script in prop::collection::vec((0u64..3, 1u64..3, any::<bool>(), any::<bool>(), any::<bool>()), 1..5),
        found in prop::collection::vec(0u32..6, 3),
    ) {
        let mut history = History::new("v", 3, 100);
        // (first, count, issued, completed, durable) with a clock of our own.
        let mut ops: Vec<(u64, u64, usize, usize, bool)> = Vec::new();
        let mut open: Vec<(usize, crate::history::Ticket)> = Vec::new();
        let mut clock = 0;
        for (first, count, wait, durable, end) in script {
            if wait {
                for (index, ticket) in open.drain(..) {
                    clock += 1;
                    ops[index].3 = clock;
                    history.complete(ticket, false);
                }
            }
            let count = count.min(3 - first);
            clock += 1;
            ops.push((first, count, clock, usize::MAX, false));
            let ticket = history.issue(Change::Write, first, count);
            if end {
                clock += 1;
                let last = ops.len() - 1;
                ops[last].3 = clock;
                ops[last].4 = durable;
                history.complete(ticket, durable);
            } else {
                open.push((ops.len() - 1, ticket));
            }
        }
        let found: Vec<u32> = found.iter().map(|n| (*n).min(ops.len() as u32)).collect();
        let mut possible = false;
        permute(&mut Vec::new(), &ops, &mut |order: &[usize]| {
            let mut sectors = [0u32; 3];
            for index in order {
                for sector in ops[*index].0..ops[*index].0 + ops[*index].1 {
                    sectors[sector as usize] = *index as u32 + 1;
                }
            }
            let durable = ops.iter().enumerate().all(|(i, op)| !op.4 || order.contains(&i));
            possible |= durable && sectors[..] == found[..];
        });
        let judged = history.check_crash(&seen(&found));
        prop_assert_eq!(judged.is_ok(), possible, "{:?} of {:?}: {:?}", found, ops, judged);
    }
}

type Timed = (u64, u64, usize, usize, bool);

/// Every order of every set of changes that contains with each all that ended before it began.
fn permute(order: &mut Vec<usize>, ops: &[Timed], visit: &mut dyn FnMut(&[usize])) {
    visit(order);
    for next in 0..ops.len() {
        let ready = !order.contains(&next)
            && (0..ops.len()).all(|other| ops[other].3 >= ops[next].2 || order.contains(&other));
        if ready {
            order.push(next);
            permute(order, ops, visit);
            order.pop();
        }
    }
}

#[test]
fn kinds_are_kept_by_name() {
    assert_eq!(serde_json::to_string(&Kind::Prefix).unwrap(), "\"Prefix\"");
}

#[test]
fn a_refusal_names_those_that_lack_and_no_others() {
    let suspects: Vec<Suspect> =
        [("disk0", true), ("disk1", false), ("disk10", true), ("log2", true)]
            .map(|(name, struck)| Suspect { name: name.to_owned(), struck })
            .to_vec();
    let judge = |message: &str| refusal::judge(message, &suspects);
    let well = [
        "its raidz1 of 3 devices needs 2 of them; missing: disk0, disk10; bring devices back",
        "its log device is missing (log2), and with it writes; bring it back",
        "segment 3: writes failed; disk0: write of 4096 bytes at offset 0: no space left; bring it back",
        // Where it lies is no blame.
        "map journal frame 7 (offset 4096 of disk0, disk1): no copy repairs it; 'pool import -F' may",
        "disk1 knows of newer changes; they are on devices that are missing: disk0; bring them back",
        "disk0: read of 4096 bytes at offset 0: no answer; out of use: disk0; use -f if you dare",
    ];
    for message in well {
        assert_eq!(judge(message), Ok(()), "{message}");
    }
    let ill = [
        ("the devices that hold newer data are missing: bring them back", "names none"),
        ("disk1 knows of newer changes; bring the others back", "names none"),
        ("missing: disk0, disk1; bring devices back", "blames disk1"),
        (
            "half of them are missing (disk1) and may hold newer data than disk0; bring it back",
            "blames disk1",
        ),
        (
            "segment 3: writes failed; disk1: flush: Input/output error; bring disk0 back",
            "blames disk1",
        ),
        (
            "missing: disk0; behind the others, and not rebuilt yet: disk1; bring it back",
            "blames disk1",
        ),
        ("missing: disk0", "what to do"),
        ("missing: disk1000; bring devices back", "names none"),
        ("", "names none"),
    ];
    for (message, why) in ill {
        let said = judge(message).unwrap_err();
        assert!(said.contains(why), "{message}: {said}");
    }
}

#[test]
fn a_read_under_way_while_a_volume_is_cut_and_grown_may_see_what_was_there() {
    let mut history = History::new("v0", 16, 1 << 20);
    let ticket = history.issue(Change::Write, 8, 8);
    history.complete(ticket, true);
    let before = history.read_begins();
    history.resize(8);
    history.resize(16);
    let after = history.read_begins();
    let old = Seen::Write(ticket.number);
    assert_eq!(history.check_read(before, 8, old), Ok(()));
    assert!(history.check_read(after, 8, old).is_err(), "what was cut off is gone");
    assert_eq!(history.check_read(after, 8, Seen::Zeros), Ok(()));
}
