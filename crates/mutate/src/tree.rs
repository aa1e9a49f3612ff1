//! The instrumented copy of the source tree.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::edit::{Edit, Owner, Rendered, is_within, render};
use crate::finder::{Mutant, find};

/// The crates and files that are mutated, in the order in which mutants run.
pub const MUTATED: &[&str] = &[
    "crates/intent_log/src",
    "crates/segment/src",
    "crates/txg/src",
    "crates/array/src",
    "crates/map/src",
    "crates/nbd/src/connection/perform.rs",
    "crates/pool/src",
];

/// What the copy's `forebay-units` has besides.
const SWITCH: &[u8] = b"\n#[doc(hidden)]\npub mod mutation;\n";

/// What the copy is made of.
const COPIED: &[&str] = &["Cargo.toml", "Cargo.lock", "clippy.toml", "crates"];

/// A source file with mutants.
pub struct Source {
    pub(crate) text: String,
    pub(crate) edits: Vec<Edit>,
    /// As it was written last.
    rendered: Rendered,
}

impl Source {
    /// A source with its edits, outer ones first.
    pub fn new(text: String, edits: Vec<Edit>) -> Self {
        Self { text, edits, rendered: Rendered::default() }
    }
}

/// Mutants, and the files that have them.
#[derive(Default)]
pub struct Mutants {
    /// In order of number, from 1.
    pub mutants: Vec<Mutant>,
    /// By path, relative to the repository.
    pub sources: BTreeMap<String, Source>,
    /// Follows the version of the copy's crates. Cargo takes two trees with equal versions that are
    /// built in one target folder for one, and what was built of the other for its own.
    pub version: &'static str,
}

impl Mutants {
    /// Those of the language in the crates that a write passes, or in some of them.
    pub fn of_the_language(root: &Path, only: &[String]) -> io::Result<Self> {
        let mut all = Self::default();
        let is_meant = |place: &&str| {
            let package = place.split('/').nth(1).unwrap_or_default().replace('_', "-");
            only.is_empty() || only.contains(&package)
        };
        for place in MUTATED.iter().copied().filter(is_meant) {
            for path in product_files(&root.join(place))? {
                let file = relative(root, &path);
                let text = std::fs::read_to_string(&path)?;
                let next = all.mutants.last().map_or(1, |last| last.number + 1);
                let found = find(&file, &text, next)
                    .map_err(|error| io::Error::other(format!("{file}: {error}")))?;
                all.mutants.extend(found.mutants);
                all.sources.insert(file, Source::new(text, found.edits));
            }
        }
        Ok(all)
    }
}

/// The copy, and the mutants in it.
pub struct Tree {
    /// Where it is.
    pub folder: PathBuf,
    /// All mutants, in order of number.
    pub mutants: Vec<Mutant>,
    /// The numbers of those that do not build.
    pub dropped: BTreeSet<u32>,
    version: &'static str,
    sources: BTreeMap<String, Source>,
}

impl Tree {
    /// Copies the tree at `root` to `folder`, but what is mutated. `dropped` has the names of
    /// mutants that did not build before.
    pub fn new(
        root: &Path,
        folder: &Path,
        all: Mutants,
        dropped: &BTreeSet<String>,
    ) -> io::Result<Self> {
        let known = all.mutants.iter().filter(|mutant| dropped.contains(&mutant.name()));
        let dropped = known.map(|mutant| mutant.number).collect();
        let Mutants { mutants, sources, version } = all;
        let tree = Self { folder: folder.to_owned(), mutants, dropped, version, sources };
        tree.copy(root)?;
        Ok(tree)
    }

    /// Copies what is not mutated, and adds the switch.
    fn copy(&self, root: &Path) -> io::Result<()> {
        let mut kept = BTreeSet::new();
        for name in COPIED {
            for path in files_below(&root.join(name))? {
                let mut file = relative(root, &path);
                if !self.sources.contains_key(&file) {
                    let mut bytes = std::fs::read(&path)?;
                    match file.as_str() {
                        "crates/units/src/lib.rs" => bytes.extend_from_slice(SWITCH),
                        "Cargo.toml" => bytes = manifest(bytes, self.version),
                        _ => {}
                    }
                    // The mutated search must not be taken for the proof's own.
                    file = file.replacen("/bin/forebay-prove/", "/bin/forebay-mutant/", 1);
                    write_if_changed(&self.folder.join(&file), &bytes)?;
                }
                kept.insert(file);
            }
        }
        let switch = "crates/units/src/mutation.rs";
        write_if_changed(&self.folder.join(switch), include_bytes!("switch.rs"))?;
        kept.insert(switch.to_owned());
        for path in files_below(&self.folder.join("crates"))? {
            if !kept.contains(&relative(&self.folder, &path)) {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Writes the mutated files without the mutants that do not build.
    pub fn write(&mut self) -> io::Result<()> {
        for (file, source) in &mut self.sources {
            source.rendered = render(&source.text, &source.edits, &self.dropped);
            write_if_changed(&self.folder.join(file), source.rendered.text.as_bytes())?;
        }
        Ok(())
    }

    /// Drops the mutants that an error at a range of a written file is due to. Returns how many.
    pub fn blame(&mut self, file: &str, range: &Range<usize>) -> usize {
        let Some(source) = self.sources.get(file) else { return 0 };
        let before = self.dropped.len();
        let owners = &source.rendered.owners;
        let around = owners.iter().filter(|(r, _)| is_within(range, r));
        let innermost = around.min_by_key(|(r, _)| r.len()).map(|(_, owner)| *owner);
        let mutants_of = |at: &usize| source.edits[*at].mutants().collect::<Vec<_>>();
        match innermost {
            Some(Owner::Mutant(number)) => self.dropped.extend([number]),
            Some(Owner::Edit(at)) => self.dropped.extend(mutants_of(&at)),
            None => {
                let inside = owners.iter().filter(|(r, _)| is_within(r, range));
                let inside: Vec<usize> = inside.filter_map(|(_, o)| edit_of(*o)).collect();
                self.dropped.extend(inside.iter().flat_map(mutants_of));
            }
        }
        self.dropped.len() - before
    }

    /// Drops mutants of the function around a range of a written file: those that leave out what
    /// ends a value, or when there are none any more, all. Returns how many.
    pub fn blame_function(&mut self, file: &str, range: &Range<usize>) -> usize {
        let Some(source) = self.sources.get(file) else { return 0 };
        let before = self.dropped.len();
        let edits = source.rendered.owners.iter().filter_map(|(r, o)| Some((r, edit_of(*o)?)));
        let nearest = edits.min_by_key(|(r, _)| r.start.abs_diff(range.start)).map(|(_, at)| at);
        let Some(function) = nearest.map(|edit| source.edits[edit].function.clone()) else {
            return 0;
        };
        let inside = source.edits.iter().filter(|edit| edit.function == function);
        let (left_out, others): (Vec<&Edit>, Vec<&Edit>) = inside.partition(|e| e.leaves_out);
        self.dropped.extend(left_out.iter().flat_map(|edit| edit.mutants()));
        if self.dropped.len() == before {
            self.dropped.extend(others.iter().flat_map(|edit| edit.mutants()));
        }
        self.dropped.len() - before
    }
}

/// The manifest of the copy's workspace, whose crates have a longer version.
pub(crate) fn manifest(original: Vec<u8>, version: &str) -> Vec<u8> {
    let text = String::from_utf8_lossy(&original);
    let lines = text.split_inclusive('\n').map(|line| match line.strip_suffix("\"\n") {
        Some(start) if line.starts_with("version = \"") => format!("{start}{version}\"\n"),
        _ => line.to_owned(),
    });
    (lines.collect::<String>() + &profile()).into_bytes()
}

/// The profile of the copy: as the proof's, but the mutated crates, which are several times their
/// size, are optimized less, for they would take longer to build than to run.
fn profile() -> String {
    let mut text = "\n[profile.mutation]\ninherits = \"prove\"\ndebug = false\n".to_owned();
    for name in crate::compile::PACKAGES {
        text += &format!("[profile.mutation.package.forebay-{name}]\nopt-level = 1\n");
    }
    text
}

fn edit_of(owner: Owner) -> Option<usize> {
    match owner {
        Owner::Edit(at) => Some(at),
        Owner::Mutant(_) => None,
    }
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
}

/// Every file below a folder in order of name; a file is its own.
fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    if folder.is_file() {
        return Ok(vec![folder.to_owned()]);
    }
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<io::Result<_>>()?;
    entries.sort();
    for path in entries {
        found.extend(files_below(&path)?);
    }
    Ok(found)
}

/// The source files below a folder that are no tests.
fn product_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let is_product = |path: &PathBuf| {
        let in_tests = path.components().any(|part| part.as_os_str() == "tests");
        path.extension().is_some_and(|end| end == "rs") && !in_tests && !path.ends_with("tests.rs")
    };
    Ok(files_below(folder)?.into_iter().filter(is_product).collect())
}

/// Writes a file unless it is so already: an unchanged one is not built again.
pub fn write_if_changed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, bytes)
}
