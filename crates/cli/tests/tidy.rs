//! The house rules that a machine can check, over every source file and page of the repository.
//!
//! Each test lists what breaks its rule as `file:line`, so that one run shows all of it.

#![allow(clippy::disallowed_methods, reason = "a test reads the tree with std::fs")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const MAX_COLUMNS: usize = 100;
const MAX_FUNCTION_LINES: usize = 70;
const MAX_HEADER_LINES: usize = 5;
const MAX_FILE_LINES: usize = 600;

/// Names that the field does not use, and the ones that it does (docs/glossary.md).
const RENAMED: &[(&str, &str)] = &[
    ("possession", "multihost"),
    ("corridor", "path"),
    ("corridors", "paths"),
    ("relapse", "crash_in_recovery"),
    ("relapses", "crashes in recovery"),
    ("planted", "mutant"),
    ("clerk", "state_writer"),
];

/// Words that leave open who acts. A noun takes their place.
const VAGUE: &[&str] = &["nobody", "somebody", "whoever", "nobody's", "somebody's"];

/// Calls that reach a file past the list of clippy.toml.
const BANNED_CALLS: &[&str] = &["File::options()", "OpenOptions::new()"];

/// The files that may open files: each is the one door of its crate to the file system.
const FILE_DOORS: &[&str] = &[
    "crates/rt/src/",
    "crates/device/src/",
    "crates/cli/src/files.rs",
    "crates/lab/src/files.rs",
    "crates/attach/src/files.rs",
];

struct Source {
    /// Relative to the repository.
    path: String,
    text: String,
}

impl Source {
    fn is_test(&self) -> bool {
        let parts = || self.path.split('/');
        parts().any(|part| part == "tests" || part == "benches" || part == "testkit")
            || self.path.ends_with("tests.rs")
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below the repository that end so, without what is built.
fn sources(ending: &str) -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && !name.starts_with("target") {
                folders.push(path);
            } else if name.ends_with(ending) && path.is_file() {
                let text = std::fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 10, "the tree was read");
    found
}

fn code() -> Vec<Source> {
    sources(".rs").into_iter().filter(|s| s.path.starts_with("crates/")).collect()
}

fn verdict(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}; {} places:\n  {}", broken.len(), broken.join("\n  "));
}

#[test]
fn lines_end_at_the_hundredth_column() {
    let mut broken = Vec::new();
    let scripts = sources(".py").into_iter().filter(|s| s.path.starts_with("bench/"));
    for source in sources(".rs").into_iter().chain(scripts) {
        for (number, line) in source.lines() {
            if line.chars().count() > MAX_COLUMNS {
                broken.push(format!("{}:{number}", source.path));
            }
        }
    }
    verdict("a line has at most 100 columns", &broken);
}

#[test]
fn files_have_at_most_six_hundred_lines() {
    let long = |s: &Source| s.text.lines().count() > MAX_FILE_LINES;
    let broken: Vec<String> = code().into_iter().filter(long).map(|s| s.path).collect();
    verdict("a file has at most 600 lines", &broken);
}

#[test]
fn headers_of_modules_have_at_most_five_lines() {
    let is_long = |s: &Source| {
        s.text.lines().take_while(|line| line.starts_with("//!")).count() > MAX_HEADER_LINES
    };
    let broken: Vec<String> = code().into_iter().filter(is_long).map(|s| s.path).collect();
    verdict("the header of a module has at most five lines; a README has room for more", &broken);
}

/// The name of the function that a line begins, as rustfmt lays it out.
fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    loop {
        let (word, after) = rest.split_once(' ')?;
        match word {
            "fn" => return after.split(['(', '<']).next(),
            "async" | "const" | "unsafe" | "extern" | "\"C\"" => rest = after,
            _ if word == "pub" || word.starts_with("pub(") => rest = after,
            _ => return None,
        }
    }
}

#[test]
fn functions_have_at_most_seventy_lines() {
    let mut broken = Vec::new();
    for source in sources(".rs") {
        let lines: Vec<&str> = source.text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(name) = function_name(line) else { continue };
            let indent = &line[..line.len() - line.trim_start().len()];
            let close = format!("{indent}}}");
            let Some(len) = lines[at..].iter().position(|l| *l == close) else { continue };
            if len + 1 > MAX_FUNCTION_LINES && !line.ends_with('}') && !line.ends_with(';') {
                broken.push(format!("{}:{} {name}: {} lines", source.path, at + 1, len + 1));
            }
        }
    }
    verdict("a function has at most 70 lines", &broken);
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|word| !word.is_empty())
}

#[test]
fn names_that_were_given_up_do_not_come_back() {
    let renamed: BTreeMap<&str, &str> = RENAMED.iter().copied().collect();
    let mut broken = Vec::new();
    let pages = sources(".md").into_iter().filter(|s| !s.path.contains("benchmarks/"));
    let pages = pages.filter(|s| !s.path.contains("docs/rfcs/") && s.path != "CHANGELOG.md");
    for source in sources(".rs").into_iter().chain(pages) {
        for (number, line) in source.lines().filter(|_| !source.path.ends_with("tests/tidy.rs")) {
            // A string may be a seed's label, which keeps its old word: a new one draws new runs.
            let said = line.split('"').step_by(2).collect::<Vec<_>>().join(" ");
            for word in words(&said.to_lowercase()) {
                if let Some(better) = renamed.get(word) {
                    broken.push(format!("{}:{number} {word}: {better}", source.path));
                }
            }
        }
    }
    verdict("the field's names are used (docs/glossary.md)", &broken);
}

#[test]
fn comments_and_pages_name_who_acts() {
    let mut broken = Vec::new();
    let pages = sources(".md").into_iter().filter(|s| !s.path.contains("benchmarks/"));
    for source in sources(".rs").into_iter().chain(pages) {
        let is_page = source.path.ends_with(".md");
        for (number, line) in source.lines().filter(|_| !source.path.ends_with("tests/tidy.rs")) {
            let prose = if is_page { Some(line) } else { line.split_once("//").map(|(_, c)| c) };
            for word in words(&prose.unwrap_or("").to_lowercase()) {
                if VAGUE.contains(&word) {
                    broken.push(format!("{}:{number} {word}", source.path));
                }
            }
        }
    }
    verdict("a sentence names who acts", &broken);
}

#[test]
fn files_are_opened_by_the_rooms_that_own_them() {
    let mut broken = Vec::new();
    for source in code().iter().filter(|s| !s.is_test() && !s.path.contains("/examples/")) {
        if FILE_DOORS.iter().any(|door| source.path.starts_with(door)) {
            continue;
        }
        for (number, line) in source.lines() {
            if BANNED_CALLS.iter().any(|call| line.contains(call)) {
                broken.push(format!("{}:{number}", source.path));
            }
        }
    }
    verdict("rt and device open files", &broken);
}

/// Public functions that only tests call: facts of a value, which tests compare with the product
/// itself.
const CALLED_BY_TESTS: &[&str] =
    &["encoded_len_max", "knows_controller", "provenance_of", "spare_fraction"];

#[test]
fn public_functions_have_a_caller_outside_tests() {
    let code = code();
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for source in code.iter().filter(|s| !s.is_test()) {
        for line in source.text.lines().filter(|l| !l.trim_start().starts_with("//")) {
            for word in line.split(|c: char| !c.is_alphanumeric() && c != '_') {
                *count.entry(word).or_default() += 1;
            }
        }
    }
    let mut broken = Vec::new();
    for source in code.iter().filter(|s| !s.is_test()) {
        for (number, line) in source.lines().filter(|(_, l)| l.trim_start().starts_with("pub")) {
            let Some(name) = function_name(line) else { continue };
            if count.get(name) == Some(&1) && !CALLED_BY_TESTS.contains(&name) {
                broken.push(format!("{}:{number} {name}", source.path));
            }
        }
    }
    verdict("a public function has a caller that is no test", &broken);
}

#[test]
fn test_code_stays_out_of_the_product() {
    let mut broken = Vec::new();
    for source in code().iter().filter(|s| !s.is_test()) {
        let lines: Vec<&str> = source.text.lines().collect();
        for (at, _) in lines.iter().enumerate().filter(|(_, l)| l.contains("cfg(test)")) {
            let next = lines[at + 1..].iter().find(|l| !l.trim_start().starts_with("#["));
            if !next.is_some_and(|l| l.trim_start().starts_with("mod ")) {
                broken.push(format!("{}:{}", source.path, at + 1));
            }
        }
    }
    verdict("cfg(test) stands before a module of tests only", &broken);
}

#[test]
fn layers_of_pools_take_writes_in_parts() {
    let mut layers = 0;
    let mut broken = Vec::new();
    let is_simulated =
        |s: &Source| s.path.starts_with("crates/sim/") || s.path.starts_with("crates/dst/");
    for source in code().iter().filter(|s| !s.is_test() && !is_simulated(s)) {
        for layer in source.text.split("impl Layer for ").skip(1) {
            let body = &layer[..layer.find("\n}").unwrap_or(layer.len())];
            layers += usize::from(body.contains("fn write("));
            if body.contains("fn write(") && !body.contains("fn write_vectored(") {
                broken.push(source.path.clone());
            }
        }
    }
    assert!(layers > 3, "the layers were found");
    verdict("a layer that changes `write` changes `write_vectored`, or all is copied", &broken);
}

#[test]
fn each_crate_has_a_readme_that_is_its_documentation() {
    let mut broken = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let door = std::fs::read_to_string(folder.join("src/lib.rs")).unwrap_or_default();
        let is_there = folder.join("README.md").is_file();
        if !is_there || !door.contains("include_str!(\"../README.md\")") {
            broken.push(folder.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    verdict("a crate's README.md is its documentation", &broken);
}

/// Targets of the links on a page that lie in the repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()).filter(|target| {
        !target.is_empty() && !target.contains("://") && !target.starts_with(['#', '<'])
    })
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for page in sources(".md") {
        let folder = root().join(&page.path).parent().unwrap().to_path_buf();
        for target in links(&page.text) {
            let file = target.split('#').next().unwrap();
            if !file.starts_with("crate::") && !folder.join(file).exists() {
                broken.push(format!("{}: {target}", page.path));
            }
        }
    }
    verdict("a link leads to a file of the repository", &broken);
}

#[test]
fn tests_that_pages_name_exist() {
    let tests: BTreeSet<String> = sources(".rs")
        .iter()
        .flat_map(|s| {
            s.text.lines().filter_map(function_name).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let page = std::fs::read_to_string(root().join("docs/fault-model.md")).unwrap();
    let quoted = page.split('`').skip(1).step_by(2);
    let names = quoted.filter(|name| {
        name.matches('_').count() >= 3
            && name.chars().all(|c| c.is_lowercase() || "_0123456789".contains(c))
    });
    let names: BTreeSet<&str> = names.collect();
    assert!(names.len() > 20, "the page names its tests");
    let broken: Vec<String> =
        names.into_iter().filter(|n| !tests.contains(*n)).map(str::to_owned).collect();
    verdict("a test that docs/fault-model.md names exists", &broken);
}
