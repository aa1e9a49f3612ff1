//! Patches as mutants: the innermost block around what a patch changes is there twice, as it is and
//! as the patch has it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::Path;

use syn::visit::{self, Visit};

use crate::edit::{Edit, IS_ON, Part, is_within};
use crate::finder::Mutant;
use crate::tree::{Mutants, Source};

/// A patch of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Name of its file, without the ending.
    pub name: String,
    /// What it changes.
    pub hunks: Vec<Hunk>,
}

/// Lines that take the place of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// Source file, relative to the repository.
    pub file: String,
    /// Line at which it was when the patch was made, from 1.
    pub line: usize,
    /// The lines before, with those around them.
    pub old: String,
    /// The lines after, with those around them.
    pub new: String,
}

/// A hunk and where it is in a source: only what differs.
#[derive(Clone, Debug)]
struct Change {
    range: Range<usize>,
    new: String,
}

/// The patches of a folder, in order of name.
pub fn read(folder: &Path) -> io::Result<Vec<Patch>> {
    let mut patches = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "patch") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let hunks = parse(&std::fs::read_to_string(&path)?);
            patches.push(Patch { name, hunks });
        }
    }
    patches.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(patches)
}

/// Reads a unified diff. What stands before it, and counts of lines, do not matter.
pub fn parse(text: &str) -> Vec<Hunk> {
    let mut hunks: Vec<Hunk> = Vec::new();
    let (mut file, mut is_inside) = (String::new(), false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("+++ b/") {
            file = name.to_owned();
        } else if let Some(ranges) = line.strip_prefix("@@ -") {
            let digits = ranges.split([',', ' ']).next().unwrap_or_default();
            let (line, file) = (digits.parse().unwrap_or(1), file.clone());
            hunks.push(Hunk { file, line, old: String::new(), new: String::new() });
            is_inside = true;
        } else if line.starts_with("diff ") {
            is_inside = false;
        } else if let Some(hunk) = hunks.last_mut().filter(|_| is_inside) {
            let (kind, rest) = line.split_at_checked(1).unwrap_or((" ", ""));
            if kind == " " || kind == "-" {
                hunk.old += &format!("{rest}\n");
            }
            if kind == " " || kind == "+" {
                hunk.new += &format!("{rest}\n");
            }
        }
    }
    hunks
}

/// Puts patches into the sources below `root`; the first has number 1.
pub fn find(root: &Path, patches: &[Patch]) -> io::Result<Mutants> {
    let mut all = Mutants { version: "-mutants", ..Mutants::default() };
    let mut texts: BTreeMap<&str, Text> = BTreeMap::new();
    for hunk in patches.iter().flat_map(|patch| &patch.hunks) {
        if !texts.contains_key(hunk.file.as_str()) {
            let text = std::fs::read_to_string(root.join(&hunk.file))?;
            let read =
                Text::new(text).map_err(|e| io::Error::other(format!("{}: {e}", hunk.file)))?;
            texts.insert(&hunk.file, read);
        }
    }
    for (patch, number) in patches.iter().zip(1..) {
        let refused = |why: &str| io::Error::other(format!("{} {why}", patch.name));
        let first = patch.hunks.first().ok_or_else(|| refused("changes nothing"))?;
        let files: BTreeSet<&str> = patch.hunks.iter().map(|hunk| hunk.file.as_str()).collect();
        for file in files {
            let hunks = patch.hunks.iter().filter(|hunk| hunk.file == file);
            let text = texts.get_mut(file).ok_or_else(|| refused("names no file"))?;
            text.put_in(number, hunks).map_err(|why| refused(&why))?;
        }
        let (file, line, change) = (first.file.clone(), first.line, patch.name.clone());
        let context = String::new();
        all.mutants.push(Mutant { number, file, line, column: 1, change, context });
    }
    for (file, text) in texts {
        all.sources.insert(file.to_owned(), text.into_source());
    }
    Ok(all)
}

/// A source, its blocks, and what patches put in their place.
struct Text {
    source: String,
    /// What is within the braces of each block.
    blocks: Vec<Range<usize>>,
    /// Blocks by their start and the negative of their end, so that outer ones stand first.
    changed: BTreeMap<(usize, isize), Vec<Part>>,
}

impl Text {
    fn new(source: String) -> syn::Result<Self> {
        let mut blocks = Blocks(Vec::new());
        blocks.visit_file(&syn::parse_file(&source)?);
        Ok(Self { source, blocks: blocks.0, changed: BTreeMap::new() })
    }

    fn put_in<'a>(
        &mut self,
        number: u32,
        hunks: impl Iterator<Item = &'a Hunk>,
    ) -> Result<(), String> {
        let mut changes = Vec::new();
        for hunk in hunks {
            let change = change_of(hunk, &self.source)
                .ok_or_else(|| format!("does not fit to {} near line {}", hunk.file, hunk.line))?;
            changes.push(change);
        }
        changes.sort_by_key(|change| change.range.start);
        let mut around: Vec<Range<usize>> = Vec::new();
        for change in &changes {
            let blocks = self.blocks.iter().filter(|block| is_within(&change.range, block));
            let fitting = blocks.filter(|block| is_block(&patched(&self.source, block, &changes)));
            let innermost = fitting.min_by_key(|block| block.len());
            let block = innermost.ok_or("changes something outside of functions")?;
            around.push(block.clone());
        }
        let outer = |block: &&Range<usize>| {
            !around.iter().any(|other| other != *block && is_within(block, other))
        };
        let outer: BTreeSet<(usize, usize)> =
            around.iter().filter(outer).map(|block| (block.start, block.end)).collect();
        for (start, end) in outer {
            let block = patched(&self.source, &(start..end), &changes);
            let text = format!("if {IS_ON} {{{block}}} else ");
            let parts = self.changed.entry((start, -(end as isize))).or_default();
            parts.push(Part::Mutant(number, text));
        }
        Ok(())
    }

    fn into_source(self) -> Source {
        let mut edits: Vec<Edit> = Vec::new();
        for ((start, end), mut parts) in self.changed {
            let range = start..end.unsigned_abs();
            parts.push(Part::Text("{".to_owned()));
            parts.push(Part::Source(range.clone()));
            parts.push(Part::Text("}".to_owned()));
            edits.push(Edit { function: range.clone(), range, parts, leaves_out: false });
        }
        Source::new(self.source, edits)
    }
}

/// A block of a source with those changes that are in it.
fn patched(source: &str, block: &Range<usize>, changes: &[Change]) -> String {
    let (mut text, mut at) = (String::new(), block.start);
    for change in changes.iter().filter(|change| is_within(&change.range, block)) {
        text += &source[at..change.range.start];
        text += &change.new;
        at = change.range.end;
    }
    text + &source[at..block.end]
}

/// Whether a text is the inside of one block. A change that ends its block and begins another one
/// only fits into the block around both.
fn is_block(text: &str) -> bool {
    syn::parse_str::<syn::Block>(&format!("{{{text}}}")).is_ok()
}

/// Where a hunk fits, nearest to its line.
fn change_of(hunk: &Hunk, source: &str) -> Option<Change> {
    let line_of = |at: usize| source[..at].matches('\n').count() + 1;
    let is_line = |at: &usize| *at == 0 || source.as_bytes()[at - 1] == b'\n';
    let fits = source.match_indices(&hunk.old).map(|(at, _)| at).filter(is_line);
    let start = fits.min_by_key(|at| line_of(*at).abs_diff(hunk.line))?;
    let (old, new): (Vec<&str>, Vec<&str>) =
        (hunk.old.split_inclusive('\n').collect(), hunk.new.split_inclusive('\n').collect());
    let pairs = old.iter().zip(&new);
    let before = pairs.take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - before;
    let pairs = old.iter().rev().zip(new.iter().rev()).take(rest);
    let after = pairs.take_while(|(a, b)| a == b).count();
    let length = |lines: &[&str]| lines.iter().map(|line| line.len()).sum::<usize>();
    let start = start + length(&old[..before]);
    let range = start..start + length(&old[before..old.len() - after]);
    Some(Change { range, new: new[before..new.len() - after].concat() })
}

/// Collects what is within the braces of each block, but in functions that are evaluated by the
/// compiler: a switch does not work there.
struct Blocks(Vec<Range<usize>>);

impl<'ast> Visit<'ast> for Blocks {
    fn visit_block(&mut self, block: &'ast syn::Block) {
        let braces = block.brace_token.span;
        self.0.push(braces.open().byte_range().end..braces.close().byte_range().start);
        visit::visit_block(self, block);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if function.sig.constness.is_none() {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if function.sig.constness.is_none() {
            visit::visit_impl_item_fn(self, function);
        }
    }
}
