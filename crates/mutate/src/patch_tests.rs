//! Tests: patches behind switches change what `git apply` changes.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::edit::{Part, render};
use crate::patches::{Patch, find, parse, read};
use crate::tree::{Mutants, Source, manifest};

const FILE: &str = "src/lib.rs";

/// A folder with one source file, which ends with this.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, source: &str) -> Self {
        let id = std::process::id();
        let folder = Self(std::env::temp_dir().join(format!("forebay-patches-{id}-{name}")));
        folder.put(FILE, source);
        folder
    }

    fn put(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn find(&self, bodies: &[&str]) -> Result<Mutants, String> {
        let patch = |body: &&str| {
            let hunks = parse(&format!("What it does.\n\ndiff a b\n+++ b/{FILE}\n{body}"));
            Patch { name: "some".to_owned(), hunks }
        };
        let patches: Vec<Patch> = bodies.iter().map(patch).collect();
        find(&self.0, &patches).map_err(|error| error.to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The source as it runs with one mutant on.
fn with_on(source: &Source, number: u32) -> String {
    let mut text = source.text.clone();
    for edit in source.edits.iter().rev() {
        let written = edit.parts.iter().find_map(|part| match part {
            Part::Mutant(found, written) if *found == number => Some(written),
            _ => None,
        });
        if let Some(written) = written {
            let inside = written.split_once('{').unwrap().1; // of the question
            let block = inside.split_once('{').unwrap().1.strip_suffix("} else ").unwrap();
            text.replace_range(edit.range.clone(), block);
        }
    }
    text
}

#[test]
fn block_is_there_as_it_is_and_as_each_patch_has_it() {
    let source = "fn f(a: u8) {\n    if a > 1 {\n        g();\n    }\n    h();\n}\n";
    let folder = Folder::new("both", source);
    let first = "@@ -2 +2 @@\n     if a > 1 {\n-        g();\n     }\n";
    let second = "@@ -4,2 +4 @@\n     }\n-    h();\n+    i();\n }\n";
    let found = folder.find(&[first, second]).unwrap();
    let source = &found.sources[FILE];
    let text = render(source.text.as_str(), &source.edits, &BTreeSet::new()).text;
    syn::parse_file(&text).expect("it parses");
    assert_eq!(text.matches("is_on(1)").count(), 1, "{text}");
    assert_eq!(text.matches("is_on(2)").count(), 1, "{text}");
    assert_eq!(with_on(source, 1), "fn f(a: u8) {\n    if a > 1 {\n    }\n    h();\n}\n");
    assert!(with_on(source, 2).contains("g();\n    }\n    i();"), "{text}");
    assert_eq!(with_on(source, 3), source.text);
}

#[test]
fn change_that_ends_its_block_and_begins_another_is_in_the_block_around_both() {
    let source = "fn f(a: u8) {\n    if a > 1 {\n        g();\n    }\n    h();\n}\n";
    let folder = Folder::new("ends", source);
    let patch =
        "@@ -2 +2,4 @@\n     if a > 1 {\n+        i();\n+    }\n+    if a > 2 {\n         g();\n";
    let found = folder.find(&[patch]).unwrap();
    let edits = &found.sources[FILE].edits;
    assert_eq!(edits.len(), 1);
    assert_eq!(edits[0].range.start, source.find('{').unwrap() + 1, "of the whole function");
    assert!(with_on(&found.sources[FILE], 1).contains("i();\n    }\n    if a > 2 {\n        g();"));
}

#[test]
fn hunk_is_where_it_fits_nearest_to_its_line() {
    let source = "fn f() {\n    g();\n}\nfn h() {\n    g();\n}\n";
    let folder = Folder::new("nearest", source);
    let found = folder.find(&["@@ -6 +6 @@\n-    g();\n+    i();\n"]).unwrap();
    let expected = "fn f() {\n    g();\n}\nfn h() {\n    i();\n}\n";
    assert_eq!(with_on(&found.sources[FILE], 1), expected);
}

#[test]
fn patches_that_fit_nowhere_or_change_no_function_are_refused() {
    let folder = Folder::new("refused", "const A: u8 = 1;\nconst fn f() -> u8 {\n    A\n}\n");
    let refused = |body: &str| folder.find(&[body]).err().expect("it is refused");
    let text = refused("@@ -1 +1 @@\n-const B: u8 = 1;\n+const B: u8 = 2;\n");
    assert_eq!(text, "some does not fit to src/lib.rs near line 1");
    let text = refused("@@ -1 +1 @@\n-const A: u8 = 1;\n+const A: u8 = 2;\n");
    assert_eq!(text, "some changes something outside of functions");
    let text = refused("@@ -3 +3 @@\n-    A\n+    2\n");
    assert_eq!(text, "some changes something outside of functions", "the compiler evaluates it");
    assert_eq!(refused("no hunk"), "some changes nothing");
}

#[test]
fn every_mutant_of_the_proof_changes_what_git_changes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let patches = read(&root.join("crates/dst/mutants")).unwrap();
    assert!(patches.len() >= 60, "{} patches", patches.len());
    let all = find(&root, &patches).unwrap();
    for (patch, number) in patches.iter().zip(1..) {
        let files: BTreeSet<&str> = patch.hunks.iter().map(|hunk| hunk.file.as_str()).collect();
        let folder = Folder::new("git", "");
        for file in &files {
            folder.put(file, &all.sources[*file].text);
        }
        let mut git = Command::new("git");
        git.args(["apply", "--recount"]).current_dir(&folder.0);
        git.arg(
            root.canonicalize().unwrap().join(format!("crates/dst/mutants/{}.patch", patch.name)),
        );
        // The folder is no part of a repository around it.
        git.env("GIT_CEILING_DIRECTORIES", std::env::temp_dir());
        match git.status() {
            Ok(status) => assert!(status.success(), "{} applies", patch.name),
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "\nSKIPPED: git does not run ({error})\n");
                return;
            }
        }
        for file in files {
            let patched = std::fs::read_to_string(folder.0.join(file)).unwrap();
            let on = with_on(&all.sources[file], number);
            assert!(on == patched, "{}: {file}", patch.name);
            assert!(on != all.sources[file].text, "{}: {file} is as it was", patch.name);
        }
    }
}

// What cargo built of the one tree would count for the other, in the target folder of both.
#[test]
fn crates_of_the_copy_have_a_version_of_their_own() {
    let original = include_bytes!("../../../Cargo.toml").to_vec();
    let text = String::from_utf8(manifest(original.clone(), "-mutants")).unwrap();
    let versions: Vec<&str> = text.lines().filter(|l| l.starts_with("version = ")).collect();
    assert_eq!(versions, [concat!("version = \"", env!("CARGO_PKG_VERSION"), "-mutants\"")]);
    let same = String::from_utf8(manifest(original.clone(), "")).unwrap();
    assert!(same.starts_with(&String::from_utf8(original).unwrap()));
}
