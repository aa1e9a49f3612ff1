//! Tests: what is found in a source, and what is written in its place.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::edit::{Owner, render};
use crate::finder::{Found, find};
use crate::process::{Ended, Task, run};
use crate::results::{Outcome, Results, Verdict};
use crate::session::{Record, affordable};
use crate::subject::{Subjects, words};
use crate::tree::Mutants;

fn found(source: &str) -> Found {
    find("crates/some/src/lib.rs", source, 1).expect("the source is right")
}

fn changes(source: &str) -> Vec<String> {
    found(source).mutants.into_iter().map(|mutant| mutant.change).collect()
}

fn rendered(source: &str) -> String {
    let text = render(source, &found(source).edits, &BTreeSet::new()).text;
    text.replace("::forebay_units::mutation::", "")
}

#[test]
fn a_comparison_has_mutants_that_share_its_operands() {
    let source = "fn f(a: u64) -> u64 { let x = a + g() < b; h(x) }";
    let of_operators: Vec<String> =
        changes(source).into_iter().filter(|change| change.contains('`')).collect();
    let expected = ["`<` becomes `<=`", "`<` becomes `==`", "`<` becomes `>`"];
    assert_eq!(of_operators[..3], expected);
    assert_eq!(of_operators[3..], ["`+` becomes `-`", "`+` becomes `*`"]);
    assert_eq!(rendered(source).matches("g()").count(), 1, "no operand is written twice");
}

#[test]
fn every_rendered_source_is_still_a_source() {
    let source = include_str!("finder.rs");
    let found = find("finder.rs", source, 1).unwrap();
    assert!(found.mutants.len() > 200, "{} mutants", found.mutants.len());
    let text = render(source, &found.edits, &BTreeSet::new()).text;
    syn::parse_file(&text).expect("it parses");
    for mutant in &found.mutants {
        assert!(text.contains(&format!("is_on({})", mutant.number)), "{mutant:?} is written");
    }
}

#[test]
fn a_source_whose_mutants_are_dropped_stays_as_it_was() {
    let source = include_str!("tree.rs");
    let found = find("tree.rs", source, 1).unwrap();
    let all = found.mutants.iter().map(|mutant| mutant.number).collect();
    assert_eq!(render(source, &found.edits, &all).text, source);
}

#[test]
fn a_condition_is_forced_both_ways_and_a_loop_only_ends() {
    assert_eq!(
        rendered("fn f() { if a { g() } }"),
        "fn f() { if is_on(1) { return (); } if (((a) || is_on(2)) && !is_on(3)) { g() } }"
    );
    assert_eq!(rendered("fn f() -> T<!> { while a {} }").matches("is_on").count(), 2);
}

#[test]
fn a_chain_with_let_keeps_its_bindings() {
    assert_eq!(
        rendered("fn f() -> impl T { if let Some(x) = a && b { g(x) } }"),
        "fn f() -> impl T { if let Some(x) = a && !is_on(1) && (((b) || is_on(2)) && !is_on(3)) \
         { g(x) } }"
    );
}

#[test]
fn statements_and_arms_are_left_out() {
    let all = changes("fn f() -> impl T { a.b(c)?; x += y; match z { P(q) => d, _ => e } }");
    assert!(all.contains(&"without `a.b(c)?;`".to_owned()), "{all:?}");
    assert!(all.contains(&"without `x += y;`".to_owned()), "{all:?}");
    assert!(all.contains(&"no arm `P(q)`".to_owned()), "{all:?}");
    assert!(!all.contains(&"no arm `_`".to_owned()), "{all:?}");
}

#[test]
fn constants_patterns_tests_and_wording_have_no_mutants() {
    let source = "const A: u64 = 1 + 2; const fn f() -> u64 { 3 } \
        impl Display for A { fn fmt(&self) -> R { g(4) } } \
        #[cfg(test)] mod tests { fn h() -> u64 { 5 } } \
        static B: [u8; 6] = [0; 7];";
    assert_eq!(changes(source), Vec::<String>::new());
    assert_eq!(changes("fn f() -> impl T { match a { 1 => b, 2..=3 => [c; 4] } }").len(), 0);
}

#[test]
fn functions_return_values_of_their_type() {
    let returns = |output: &str| {
        let all = changes(&format!("fn f() -> {output} {{ g() }}"));
        let value = |change: &String| {
            change.strip_prefix("f returns ")?.strip_suffix(" at once").map(str::to_owned)
        };
        all.iter().filter_map(value).collect::<Vec<_>>()
    };
    assert_eq!(returns("bool"), ["true", "false"]);
    assert_eq!(returns("Result<Option<u8>, E>"), ["Ok(None)", "Ok(Some(0))", "Ok(Some(1))"]);
    assert_eq!(returns("Vec<Lba>"), ["Vec::new()", "vec![Default::default()]"]);
    assert_eq!(returns("(u8, bool)"), ["(0, true)"]);
    assert_eq!(returns("impl Iterator<Item = u8>"), Vec::<String>::new());
}

#[test]
fn ranges_of_a_rendered_text_lead_back_to_their_mutants() {
    let source = "fn f() -> impl T { a < b }";
    let found = found(source);
    let rendered = render(source, &found.edits, &BTreeSet::from([2]));
    for (range, owner) in &rendered.owners {
        if let Owner::Mutant(number) = owner {
            assert!(rendered.text[range.clone()].contains(&format!("is_on({number})")));
            assert_ne!(*number, 2, "a dropped mutant is not written");
        }
    }
    assert_eq!(rendered.owners.len(), 3, "two mutants and the edit");
}

fn ended_after(script: &str, limit: Duration) -> (Ended, Duration) {
    let command = ["sh", "-c", script].map(str::to_owned);
    let task = Task { command: &command, folder: Path::new("/"), mutant: "7", limit };
    run(&task, |line| line == "bad").expect("sh runs")
}

fn ended(script: &str, limit: Duration) -> Ended {
    ended_after(script, limit).0
}

#[test]
fn a_program_fails_by_its_output_its_status_or_its_time() {
    let long = Duration::from_secs(60);
    assert_eq!(ended("test $FOREBAY_MUTANT = 7", long), Ended::Passed);
    assert_eq!(ended("echo good; echo bad; exec sleep 60", long), Ended::Failed("bad".to_owned()));
    assert!(matches!(ended("exit 3", long), Ended::Failed(_)));
    assert_eq!(ended("while :; do :; done", Duration::from_millis(100)), Ended::Limit);
    // Load makes a program wait, and what it waits for does not count.
    let (waited, takes) = ended_after("exec sleep 1", long);
    assert_eq!(waited, Ended::Passed);
    assert!(takes < Duration::from_millis(500), "{takes:?} of processor time");
}

#[test]
fn results_continue_where_they_stopped() {
    let path = std::env::temp_dir().join(format!("forebay-mutate-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let mutants = found("fn f() -> bool { g() }").mutants;
    let verdict = |outcome| Verdict { outcome, by: "a test".to_owned() };
    let mut results = Results::open(&path).unwrap();
    results.add(&mutants[0], &verdict(Outcome::Survived)).unwrap();
    results.add(&mutants[0], &verdict(Outcome::Scenario)).unwrap();
    drop(results);
    let results = Results::open(&path).unwrap();
    assert_eq!(results.of(&mutants[0]), Some(Outcome::Scenario), "the last line counts");
    assert_eq!(results.of(&mutants[1]), None);
    let summary = results.summary(&mutants, &BTreeSet::new());
    assert!(summary.contains("| some | 2 | 0 | 0 | 1 | 0 | 0 | 0 | 1 |"), "{summary}");
    drop(results);
    let mut results = Results::open(&path).unwrap();
    results.add(&mutants[1], &verdict(Outcome::NotReached)).unwrap();
    let text = results.survivors(&mutants, &BTreeSet::new());
    assert!(text.contains("of 2 that ran of 2"), "{text}");
    assert_eq!(text.lines().nth(1), Some(format!("not-reached  {}", mutants[1].name()).as_str()));
    assert_eq!(results.survivors(&mutants, &BTreeSet::from([2])).lines().count(), 1, "not built");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_slow_test_that_noticed_much_leaves_quick_ones_their_turn() {
    // How many mutants each has noticed, and how long it takes.
    let record = |at: usize| {
        let (noticed, millis) = [(9, 10_000), (3, 4_000), (0, 200), (0, 100), (1, 2_000)][at];
        Record { near: 0, noticed, takes: Duration::from_millis(millis) }
    };
    let asked = |most| affordable((0..5).collect(), Duration::from_millis(most), record);
    assert_eq!(asked(5_000), [1, 3, 2]);
    assert_eq!(asked(20_000), [0, 1, 4, 3, 2]);
    // None fits, and one is asked in any case.
    assert_eq!(asked(50), [0]);
    let nearer = |at: usize| Record { near: at as u32 % 2, ..record(at) };
    assert_eq!(affordable((0..5).collect(), Duration::from_secs(5), nearer), [1, 3, 2]);
    assert_eq!(affordable((0..5).collect(), Duration::from_secs(20), nearer), [0, 1, 3, 4, 2]);
}

#[test]
fn tests_that_name_what_a_mutant_is_about_are_nearest() {
    let names = [
        "commit::trim::tests::nothing_is_discarded",
        "tests::blocks_after_a_trim",
        "tests::a_pool_is_there",
        "tests::discards_of_a_pool",
    ];
    let subjects = Subjects::new(names);
    let of_trim = subjects.near("crates/pool/src/commit/trim.rs", "Pool::end");
    assert!(of_trim[0] > of_trim[1] && of_trim[1] > of_trim[2], "{of_trim:?}");
    let of_line = subjects.near("crates/pool/src/lib.rs", "self.discards.set(None);");
    assert_eq!(of_line.iter().max(), Some(&of_line[3]), "{of_line:?}");
    // The rarer the word that a test has in common, the more it says.
    assert!(of_trim[2] < of_line[3], "{of_trim:?} {of_line:?}");
    assert_eq!(
        words("SyncMode::is_due(&self)").into_iter().collect::<Vec<_>>(),
        ["due", "mode", "sync"]
    );
}

#[test]
fn mutants_of_one_crate_are_those_of_its_folder() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let of = |only: &[&str]| {
        let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
        Mutants::of_the_language(&root, &only).expect("the sources are right").mutants
    };
    let (log, group, both) = (of(&["intent-log"]), of(&["txg"]), of(&["intent-log", "txg"]));
    assert!(log.len() > 500 && log.iter().all(|mutant| mutant.package() == "intent_log"));
    assert!(group.len() > 100 && group.iter().all(|mutant| mutant.package() == "txg"));
    assert_eq!(both.len(), log.len() + group.len());
    assert!(of(&[]).len() > 2 * both.len());
}
