//! A short proof of the pool, for every test run.

use std::path::Path;
use std::rc::Rc;

use forebay_dst::fault_plan::Level;
use forebay_dst::generate::{Aim, Constraints};
use forebay_dst::pool::Forebay;
use forebay_dst::prove::scenario_of;
use forebay_dst::{corpus, run};

fn constraints(level: Level) -> Constraints {
    Constraints { level: Some(level), admin: true, acts: Some(24), ..Constraints::default() }
}

// Each file records a defect that the product once had.
#[test]
fn every_scenario_of_the_corpus_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let scenarios = corpus::load(&folder).expect("the corpus is readable");
    assert!(!scenarios.is_empty());
    for (path, scenario) in scenarios {
        let outcome = run(&Rc::new(Forebay::default()), &scenario);
        assert_eq!(outcome.failure, None, "{}: {}", path.display(), scenario.description);
    }
}

#[test]
fn power_cuts_lose_no_acknowledged_write() {
    for number in 0..40 {
        let scenario = scenario_of(11, number, &constraints(Level::CrashOnly));
        let outcome = run(&Rc::new(Forebay::default()), &scenario);
        assert_eq!(outcome.failure, None, "run {number} of root seed 11");
    }
}

// A few scenarios of each aim: what a mutation run tries beside the corpus.
#[test]
fn scenarios_of_every_aim_pass() {
    let aims = [
        (Aim::Parts, Level::CrashOnly, 16),
        (Aim::Refusals, Level::CrashOnly, 2),
        (Aim::Redundancy, Level::Within, 10),
        (Aim::Sizes, Level::CrashOnly, 2),
        (Aim::Beside, Level::Within, 16),
        (Aim::Replay, Level::CrashOnly, 3),
        (Aim::Rewind, Level::CrashOnly, 10),
        (Aim::Throttle, Level::CrashOnly, 3),
        (Aim::SlowReads, Level::CrashOnly, 1),
        (Aim::MovedRot, Level::Within, 1),
        (Aim::Misaddressed, Level::Within, 6),
        (Aim::Roots, Level::CrashOnly, 12),
        (Aim::Blocked, Level::CrashOnly, 12),
        (Aim::Suspension, Level::CrashOnly, 12),
        (Aim::Suspension, Level::Within, 12),
        (Aim::Sharing, Level::CrashOnly, 4),
        (Aim::Memory, Level::CrashOnly, 6),
        (Aim::Takeover, Level::CrashOnly, 12),
    ];
    for (aim, level, scenarios) in aims {
        let constraints = Constraints { aim: Some(aim), acts: None, ..constraints(level) };
        let constraints = Constraints { manage: true, ..constraints };
        for number in 0..scenarios {
            let scenario = scenario_of(13, number, &constraints);
            let outcome = run(&Rc::new(Forebay::default()), &scenario);
            assert_eq!(outcome.failure, None, "run {number} of root seed 13, {aim:?}");
        }
    }
}

// Two machines take turns, and each turn follows from the scenario.
#[test]
fn equal_takeovers_give_equal_digests() {
    let aim = Some(Aim::Takeover);
    let free = Constraints { aim, acts: None, manage: true, ..constraints(Level::CrashOnly) };
    let mut replaced = 0;
    for number in 0..6 {
        let scenario = scenario_of(14, number, &free);
        let first = run(&Rc::new(Forebay::default()), &scenario);
        let second = run(&Rc::new(Forebay::default()), &scenario);
        assert_eq!(first, second, "run {number} of root seed 14");
        replaced += first.tally.events.get("owners replaced").copied().unwrap_or(0);
    }
    assert!(replaced > 0, "an owner was replaced");
}

#[test]
fn equal_scenarios_of_the_pool_give_equal_digests() {
    for number in 0..6 {
        let scenario = scenario_of(12, number, &constraints(Level::Within));
        let (first, second) = (
            run(&Rc::new(Forebay::default()), &scenario),
            run(&Rc::new(Forebay::default()), &scenario),
        );
        assert_eq!(first.digest, second.digest, "run {number} of root seed 12");
        assert_eq!(first.tally, second.tally);
        assert_ne!(first.digest, 0);
    }
}
