//! Who may know whom: the crates' dependencies against the allow-list of ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// A room, and what it may depend on. Ground first, then the path, then what stands beside it.
const ALLOWED: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("rt", &["units"]),
    ("device", &["units", "rt"]),
    ("format", &["units"]),
    ("nbd", &["units", "rt", "device"]),
    ("intent-log", &["units", "rt", "device", "format"]),
    ("array", &["units", "rt", "device", "format"]),
    ("segment", &["units", "rt", "device", "format", "array"]),
    ("map", &["units", "rt", "device", "format"]),
    ("txg", &["units", "rt", "device", "format", "array", "segment", "map"]),
    ("multihost", &["units", "rt", "device", "format"]),
    (
        "pool",
        &[
            "units",
            "rt",
            "device",
            "format",
            "intent-log",
            "array",
            "segment",
            "map",
            "txg",
            "multihost",
        ],
    ),
    ("flash", &["units"]),
    ("sim", &["units", "rt", "device", "flash"]),
    ("trace", &["units", "rt", "device"]),
    ("report", &["units"]),
    ("dst", &["units", "rt", "device", "format", "nbd", "pool", "sim", "flash", "trace"]),
    ("lab", &["units", "rt", "device", "nbd", "pool", "sim", "flash", "trace", "dst", "report"]),
    ("cli", &["units", "rt", "device", "format", "nbd", "pool", "trace", "dst", "lab", "report"]),
];

/// Tests may also use these, whatever the room: they only stand in for hardware.
const ALLOWED_IN_TESTS: &[&str] = &["sim", "flash", "rt", "device"];

struct Arrow {
    from: String,
    to: String,
    test_only: bool,
}

fn arrows() -> (BTreeSet<String>, Vec<Arrow>) {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut rooms = BTreeSet::new();
    let mut arrows = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let Some(from) = room(&package["name"]) else { continue };
        rooms.insert(from.clone());
        for dependency in package["dependencies"].as_array().unwrap() {
            if let Some(to) = room(&dependency["name"]) {
                let test_only = dependency["kind"] == "dev";
                arrows.push(Arrow { from: from.clone(), to, test_only });
            }
        }
    }
    (rooms, arrows)
}

fn room(name: &serde_json::Value) -> Option<String> {
    name.as_str()?.strip_prefix("forebay-").map(str::to_owned)
}

#[test]
fn dependencies_point_down_only() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let (rooms, arrows) = arrows();
    assert!(rooms.contains("cli") && rooms.contains("units"), "the workspace was read");
    let mut wrong = Vec::new();
    for room in &rooms {
        if !allowed.contains_key(room.as_str()) {
            wrong.push(format!("{room} is not in the allow-list of this test"));
        }
    }
    for Arrow { from, to, test_only } in arrows {
        let to_known = allowed.get(from.as_str()).is_some_and(|list| list.contains(&to.as_str()));
        let for_test = test_only && ALLOWED_IN_TESTS.contains(&to.as_str());
        if !to_known && !for_test && from != to {
            wrong.push(format!("{from} must not know {to}"));
        }
    }
    assert!(wrong.is_empty(), "forbidden arrows:\n  {}", wrong.join("\n  "));
}

#[test]
fn the_allow_list_has_no_way_back() {
    let position = |name: &str| {
        ALLOWED.iter().position(|(room, _)| *room == name).unwrap_or_else(|| panic!("{name}?"))
    };
    for (from, list) in ALLOWED {
        for to in *list {
            assert!(position(to) < position(from), "{from} -> {to} points up");
        }
    }
    let may = |from: &str, to: &str| ALLOWED[position(from)].1.contains(&to);
    assert!(!may("txg", "intent-log") && !may("intent-log", "txg"), "they meet in pool");
    assert!(!may("sim", "pool") && !may("nbd", "pool"));
}
