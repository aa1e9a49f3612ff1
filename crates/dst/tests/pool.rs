//! The pool under a short proof: what CI runs on every change.

use std::path::Path;
use std::rc::Rc;

use forebay_dst::fault_plan::Level;
use forebay_dst::generate::Constraints;
use forebay_dst::pool::Forebay;
use forebay_dst::prove::scenario_of;
use forebay_dst::{corpus, run};

fn constraints(level: Level) -> Constraints {
    Constraints { level: Some(level), admin: true, acts: Some(24), ..Constraints::default() }
}

// Each file is a defect that the product once had; its story is in the file.
#[test]
fn no_defect_of_the_corpus_is_back() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let scenarios = corpus::load(&folder).expect("the corpus is readable");
    assert!(!scenarios.is_empty());
    for (path, scenario) in scenarios {
        let outcome = run(&Rc::new(Forebay::default()), &scenario);
        assert_eq!(outcome.failure, None, "{}: {}", path.display(), scenario.story);
    }
}

#[test]
fn power_cuts_lose_nothing() {
    for number in 0..40 {
        let scenario = scenario_of(11, number, &constraints(Level::CrashOnly));
        let outcome = run(&Rc::new(Forebay::default()), &scenario);
        assert_eq!(outcome.failure, None, "run {number} of root seed 11");
    }
}

#[test]
fn the_pool_does_the_same_twice() {
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
