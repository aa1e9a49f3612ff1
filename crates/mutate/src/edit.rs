//! Edits of a source text: what stands in place of a range while the tree is instrumented.
//!
//! An edit keeps parts of the source, which are edited in turn, so a place has any number of
//! mutants and its text never doubles.

use std::collections::BTreeSet;
use std::ops::Range;

/// Stands for the question whether the mutant of a part is on.
pub const IS_ON: &str = "{is_on}";

/// A part of what an edit writes.
#[derive(Clone, Debug)]
pub enum Part {
    /// Fixed text.
    Text(String),
    /// A range of the source with its own edits.
    Source(Range<usize>),
    /// Text that goes when the mutant of this number does not build.
    Mutant(u32, String),
}

/// What stands in place of a range of the source.
#[derive(Clone, Debug)]
pub struct Edit {
    /// The range in the source.
    pub range: Range<usize>,
    /// What is written.
    pub parts: Vec<Part>,
    /// The function around it.
    pub function: Range<usize>,
    /// Whether its mutant may leave a variable without a value, or borrowed.
    pub leaves_out: bool,
}

impl Edit {
    /// The numbers of its mutants.
    pub fn mutants(&self) -> impl Iterator<Item = u32> {
        self.parts.iter().filter_map(|part| match part {
            Part::Mutant(number, _) => Some(*number),
            _ => None,
        })
    }
}

/// What a range of an instrumented text belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The text of one mutant.
    Mutant(u32),
    /// The edit of this index.
    Edit(usize),
}

/// An instrumented text.
#[derive(Debug, Default)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Ranges of the text and what they belong to, inner ones before outer ones.
    pub owners: Vec<(Range<usize>, Owner)>,
}

/// Writes a source with its edits, which stand in the order of a walk from the outside in. Mutants
/// in `dropped` are left out.
pub fn render(source: &str, edits: &[Edit], dropped: &BTreeSet<u32>) -> Rendered {
    let alive: Vec<usize> = (0..edits.len())
        .filter(|at| edits[*at].mutants().any(|number| !dropped.contains(&number)))
        .collect();
    let mut writer = Writer { source, edits, dropped, out: Rendered::default() };
    writer.write(0..source.len(), &alive);
    writer.out
}

struct Writer<'a> {
    source: &'a str,
    edits: &'a [Edit],
    dropped: &'a BTreeSet<u32>,
    out: Rendered,
}

impl Writer<'_> {
    /// Writes a range of the source; `alive` are the edits in it.
    fn write(&mut self, range: Range<usize>, alive: &[usize]) {
        let mut at = range.start;
        let mut next = 0;
        while next < alive.len() {
            let index = alive[next];
            let edit = &self.edits[index];
            let inner = alive[next + 1..]
                .iter()
                .take_while(|i| is_within(&self.edits[**i].range, &edit.range))
                .count();
            self.out.text.push_str(&self.source[at..edit.range.start]);
            self.write_edit(index, &alive[next + 1..next + 1 + inner]);
            at = edit.range.end;
            next += 1 + inner;
        }
        self.out.text.push_str(&self.source[at..range.end]);
    }

    fn write_edit(&mut self, index: usize, inner: &[usize]) {
        let start = self.out.text.len();
        for part in &self.edits[index].parts {
            match part {
                Part::Text(text) => self.out.text.push_str(text),
                Part::Source(range) => {
                    let within = |i: &usize| is_within(&self.edits[*i].range, range);
                    let alive: Vec<usize> = inner.iter().copied().filter(within).collect();
                    self.write(range.clone(), &alive);
                }
                Part::Mutant(number, text) if !self.dropped.contains(number) => {
                    let from = self.out.text.len();
                    let question = format!("::forebay_units::mutation::is_on({number})");
                    self.out.text.push_str(&text.replace(IS_ON, &question));
                    let owner = Owner::Mutant(*number);
                    self.out.owners.push((from..self.out.text.len(), owner));
                }
                Part::Mutant(..) => {}
            }
        }
        self.out.owners.push((start..self.out.text.len(), Owner::Edit(index)));
    }
}

/// Whether a range lies within another one.
pub fn is_within(inner: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
