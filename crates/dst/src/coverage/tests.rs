use forebay_sim::Seed;

use super::*;
use crate::fault_plan::Level;
use crate::generate::{Constraints, generate};

fn drawn(seed: u64) -> Scenario {
    let constraints = Constraints { level: Some(Level::Within), ..Constraints::default() };
    generate(Seed(seed), &constraints)
}

#[test]
fn scenario_is_rarer_before_it_was_drawn() {
    let mut seen = Drawn::default();
    let scenario = (0..).map(drawn).find(|scenario| !pairs(scenario).is_empty()).unwrap();
    let before = seen.rarity(&scenario);
    seen.add(&scenario);
    let after = seen.rarity(&scenario);
    assert!(after < before, "{after} is not below {before}");
}

#[test]
fn page_counts_states_and_names_cells_never_met() {
    let coverage = Coverage::new(&drawn(1));
    coverage.note("rot", false);
    coverage.observe(|| ("scrub", Activity { scan: "scrub", cleans: true }));
    coverage.note("rot", true);
    coverage.note("gone", true);
    coverage.note("gone", true);
    let states = coverage.states();
    assert_eq!((states.len(), states.values().sum::<u64>()), (3, 4));
    let page = page(&states, "a search");
    assert!(page.contains("| further disk: scrub, cleaner | 2 | 1 |"), "{page}");
    assert!(page.contains("1 of 4 cells were never met."), "{page}");
}
