use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_rt::Runtime;
use forebay_sim::faults::{Fault, Ops};
use forebay_sim::{CrashPoint, Seed};
use proptest::prelude::*;

use crate::disks::Disks;
use crate::exhaustive::{Depth, explore_shard};
use crate::fault_plan::{FaultPlan, Level};
use crate::generate::{Aim, Constraints, generate};
use crate::reference_pool::{Flaw, Reference};
use crate::scenario::{
    Act, Attempt, Crash, CutOff, Fates, Loss, MapRot, Power, Scenario, Takeover, TimedFault,
    TimedLoss, TimedMapLoss, TimedPower,
};
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
        last_group: None,
        spare_disks: 0,
        hot_spares: 0,
        cache_disks: 0,
        memory_logs: 0,
        remote_logs: 0,
        mirrored_memory: 0,
        in_objects: false,
        stores: Vec::new(),
        data_bytes: 256 << 20,
        log_bytes: 0,
        segment_bytes: 1 << 20,
        properties: BTreeMap::new(),
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
fn equal_scenarios_give_equal_digests() {
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
    let different: BTreeSet<_> = digests.iter().collect();
    assert_eq!(different.len(), digests.len());
}

#[test]
fn failure_shrinks_and_replays_from_json() {
    let reference = Rc::new(Reference { flaw: Flaw::AckBeforeDurable });
    let seed = (0..400)
        .find(|seed| run(&reference, &reference_scenario(*seed)).failure.is_some())
        .unwrap();
    let scenario = reference_scenario(seed);
    let kind = run(&reference, &scenario).failure.unwrap().kind;
    let (small, _) = shrink::shrink(&scenario, kind, 3000, |s| run(&reference, s));
    assert!(small.acts() <= 6, "{} of {} acts remain", small.acts(), scenario.acts());
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
    let depth = Depth { second_every: 5, ..Default::default() };
    let report = explore_shard(&reference, &scenario, &depth, (0, 1));
    assert_eq!(report.failure.map(|(_, f)| f), None);
    assert!(
        report.first > 20 && report.second > 20,
        "{report:?}",
        report = (report.first, report.second)
    );
    let flawed = Rc::new(Reference { flaw: Flaw::NoChecksum });
    let report = explore_shard(&flawed, &scenario, &depth, (0, 1));
    let (found, failure) = report.failure.expect("replay accepts a torn record somewhere");
    assert_eq!(run(&flawed, &found).failure, Some(failure), "the saved scenario fails alike");
}

#[test]
fn crash_round_trips_through_json() {
    let crash = Crash::at(CrashPoint::AfterSubmit(3), Fates::Subset(5));
    let text = serde_json::to_string(&crash).unwrap();
    assert_eq!(serde_json::from_str::<Crash>(&text).unwrap(), crash);
}

#[test]
fn kept_map_frame_survives_one_overwrite() {
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
    write(8192, b"FBAYJRNL, old");
    write(16384, b"something else");
    disks.keep_map(&[0, 99]);
    write(8192, b"FBAYJRNL, first");
    write(16384, b"anything");
    assert!(holds(8192).starts_with(b"FBAYJRNL, old"));
    assert!(holds(16384).starts_with(b"anything"));
    write(8192, b"FBAYJRNL, second");
    assert!(holds(8192).starts_with(b"FBAYJRNL, second"));
}

#[test]
fn rare_classes_are_drawn() {
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
fn groups_of_other_kinds_lose_as_many_disks_as_each_of_them_can_spare() {
    let constraints =
        Constraints { level: Some(Level::Within), manage: true, ..Constraints::default() };
    let drawn = (0..4000).map(|seed| generate(Seed(seed), &constraints).spec);
    let mixed: Vec<PoolSpec> = drawn.filter(|spec| spec.last_group.is_some()).collect();
    let mut met = BTreeSet::new();
    for spec in &mixed {
        let groups: Vec<_> = spec.groups_with_parity().collect();
        let struck = |plan: &FaultPlan, disks: &std::ops::Range<usize>| {
            plan.victims().iter().filter(|disk| disks.contains(disk)).count()
        };
        for seed in 0..20 {
            let plan = FaultPlan::draw(spec, Level::Within, &mut Seed(seed).rng());
            let counts = groups.iter().map(|(disks, parity)| (struck(&plan, disks), *parity));
            for (count, parity) in counts {
                assert!(count <= parity, "{count} of {parity} disks of {spec:?}");
                met.insert((count, parity));
            }
        }
    }
    // A mirror of five disks can spare four.
    let all = (0..=4).flat_map(|parity| (0..=parity).map(move |count| (count, parity)));
    assert_eq!(met, all.collect(), "of {} pools", mixed.len());
}

#[test]
fn shrinker_drops_faults_of_the_map_journal() {
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
    scenario.boots[0].lost_map = Some(TimedMapLoss { at_command: 1, pick: None });
    let fails = |_: &Scenario| {
        let failure = Failure { kind: Kind::Prefix, message: String::new() };
        let tally = Tally::default();
        Outcome { failure: Some(failure), digest: 0, tally, boot_commands: Vec::new() }
    };
    let (small, _) = shrink::shrink(&scenario, Kind::Prefix, 2000, fails);
    for boot in &small.boots {
        assert!(boot.stale_map.is_empty() && boot.map_rot.is_none() && boot.faults.is_empty());
        assert!(boot.lost_map.is_none());
    }
}

proptest! {
    #[test]
    fn stamp_reads_back_and_every_flipped_bit_is_garbage(
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
}

#[test]
fn failure_kind_serializes_by_name() {
    assert_eq!(serde_json::to_string(&Kind::Prefix).unwrap(), "\"Prefix\"");
}

#[test]
fn shared_stamps_are_equal_in_all_blocks_and_name_their_write() {
    let block = |volume: u32, first: u64, number: u32| {
        let mut bytes = [[0xff; 512]; 8];
        for (sector, out) in (first..).zip(&mut bytes) {
            stamp(out, volume, sector, number, Fill::Shared);
        }
        bytes
    };
    for number in [1, 2] {
        assert_eq!(block(1, 16, number), block(7, 8 << 30, number));
        assert_ne!(block(1, 16, number), block(1, 16, number + 1));
    }
    let sector = block(1, 16, 5)[3];
    assert_eq!(examine(&sector, 9, 8 * 100 + 3), Seen::Write(5));
    assert!(matches!(examine(&sector, 1, 20), Seen::Elsewhere { number: 5, .. }));
}

#[test]
fn hang_strikes_a_disk_whose_deadline_is_shorter() {
    for (deadline_secs, is_struck) in [(None, false), (Some("5"), false), (Some("1"), true)] {
        let mut scenario = reference_scenario(1);
        let property = deadline_secs.map(|secs| ("device_timeout".to_owned(), secs.to_owned()));
        scenario.spec.properties.extend(property);
        let disks = Disks::new(&scenario);
        let fault = Fault::Hung { ops: Ops::READ };
        Runtime::simulated(1).block_on(async move {
            disks.schedule(&[TimedFault { at_command: 0, disk: 0, fault }], None);
            assert_eq!(disks.suspects()[0].is_struck, is_struck, "deadline {deadline_secs:?}");
        });
    }
}

#[test]
fn takeover_shrinks_to_what_fails() {
    let aim = Some(Aim::Takeover);
    let free = Constraints { aim, level: Some(Level::CrashOnly), ..Constraints::default() };
    let scenario = (0..).map(|seed| generate(Seed(seed), &free)).find(|scenario| {
        scenario.boots.iter().any(|b| b.takeover.as_ref().is_some_and(|t| t.stands.len() > 1))
    });
    let mut scenario = scenario.expect("some are drawn");
    for boot in &mut scenario.boots {
        boot.power = vec![TimedPower { at_command: 1, power: Power::Battery }; 2];
        boot.lost_objects = vec![TimedLoss { at_command: 1, pick: 3 }; 3];
        if let Some(takeover) = &mut boot.takeover {
            takeover.misses = vec![0, 1];
            takeover.rival = vec![Attempt { pause_ns: 1, forces: true }; 2];
            takeover.loss = Some(Loss { disks: vec![0], how: CutOff::Fails, after_ns: 1 });
        }
    }
    let takeovers = |scenario: &Scenario| -> Vec<Takeover> {
        scenario.boots.iter().filter_map(|boot| boot.takeover.clone()).collect()
    };
    let fails = |candidate: &Scenario| {
        let failure = takeovers(candidate)
            .iter()
            .any(|t| !t.stands.is_empty())
            .then(|| Failure { kind: Kind::Owners, message: String::new() });
        Outcome { failure, digest: 0, tally: Tally::default(), boot_commands: Vec::new() }
    };
    let (small, _) = shrink::shrink(&scenario, Kind::Owners, 4000, fails);
    let left = takeovers(&small);
    assert_eq!(left.iter().map(|t| t.stands.len()).sum::<usize>(), 1);
    assert!(left.iter().all(|t| t.attempts.is_empty() && t.clients.iter().all(Vec::is_empty)));
    assert!(left.iter().all(|t| t.misses.is_empty() && t.rival.is_empty() && t.loss.is_none()));
    assert!(small.boots.iter().all(|b| b.power.is_empty() && b.lost_objects.is_empty()));
    assert_eq!(small.acts(), 0);
}
