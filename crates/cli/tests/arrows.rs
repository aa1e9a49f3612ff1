//! Who may know whom: the crates' dependencies against the table of ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// A test may use these, whatever the room: they only stand in for hardware.
const ALLOWED_IN_TESTS: &[&str] = &["sim", "flash", "rt", "device", "testkit"];

/// Stands in for hardware in tests, and is in no product.
const TEST_ONLY: &str = "testkit";

const PAGE: &str = include_str!("../../../ARCHITECTURE.md");

struct Room {
    knows: BTreeSet<String>,
    /// What only its tests know.
    tests_know: BTreeSet<String>,
}

/// The rooms of the workspace, as their `Cargo.toml` files have them.
fn rooms() -> BTreeMap<String, Room> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .filter_map(|package| {
            let from = room_name(&package["name"])?;
            let of_kind = |is_test: bool| {
                let all = package["dependencies"].as_array().unwrap().iter();
                let kind = all.filter(move |d| (d["kind"] == "dev") == is_test);
                kind.filter_map(|d| room_name(&d["name"])).filter(|to| *to != from).collect()
            };
            let (knows, tests_know) = (of_kind(false), of_kind(true));
            Some((from.clone(), Room { knows, tests_know }))
        })
        .collect()
}

fn room_name(package: &serde_json::Value) -> Option<String> {
    Some(package.as_str()?.strip_prefix("forebay-")?.replace('-', "_"))
}

/// The rows of the table, in order: a room and what it knows.
fn table() -> Vec<(String, BTreeSet<String>)> {
    let section = PAGE.split("\n## ").find(|s| s.starts_with("The rooms")).expect("the section");
    let rows = section.lines().filter(|line| line.starts_with("| [`"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells[0].split('`').nth(1).expect("a room in backticks");
        let knows = cells[2].split(',').map(str::trim).filter(|to| !to.is_empty());
        (name.to_owned(), knows.map(str::to_owned).collect())
    })
    .collect()
}

#[test]
fn the_table_says_what_each_crate_knows() {
    let rooms = rooms();
    let table: BTreeMap<String, BTreeSet<String>> = table().into_iter().collect();
    assert!(table.len() > 10, "the table was read");
    let mut wrong = Vec::new();
    for (name, room) in rooms.iter().filter(|(name, _)| *name != TEST_ONLY) {
        match table.get(name) {
            None => wrong.push(format!("{name} has no row")),
            Some(row) if *row != room.knows => {
                wrong.push(format!("{name} knows {:?}, its row says {row:?}", room.knows));
            }
            Some(_) => {}
        }
    }
    let gone = table.keys().filter(|name| !rooms.contains_key(*name));
    wrong.extend(gone.map(|name| format!("{name} has a row and is no crate")));
    assert!(wrong.is_empty(), "ARCHITECTURE.md and Cargo.toml differ:\n  {}", wrong.join("\n  "));
}

#[test]
fn arrows_point_down_only() {
    let table = table();
    let position = |name: &str| table.iter().position(|(room, _)| room == name);
    for (from, knows) in &table {
        for to in knows {
            assert!(position(to) < position(from), "{from} -> {to} points up");
            assert_ne!(to, TEST_ONLY, "{from} is in the product");
        }
    }
    let knows = |from: &str, to: &str| table[position(from).unwrap()].1.contains(to);
    assert!(!knows("txg", "intent_log") && !knows("intent_log", "txg"), "they meet in pool");
    assert!(!knows("sim", "pool") && !knows("nbd", "pool") && !knows("multihost", "pool"));
}

#[test]
fn tests_know_what_their_crate_knows_and_stand_ins_for_hardware() {
    for (name, room) in rooms() {
        for to in &room.tests_know {
            let is_allowed = room.knows.contains(to) || ALLOWED_IN_TESTS.contains(&to.as_str());
            assert!(is_allowed, "tests of {name} must not know {to}");
        }
    }
}
