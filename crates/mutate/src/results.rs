//! Results: one line a mutant, appended to a file, and what they come to.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

use crate::finder::Mutant;

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// A test of its crate noticed.
    OwnTest,
    /// A scenario noticed.
    Scenario,
    /// A test of another crate noticed.
    OtherTest,
    /// Nothing noticed.
    Survived,
    /// Nothing reaches it.
    NotReached,
}

const WORDS: &[(Outcome, &str)] = &[
    (Outcome::OwnTest, "own-test"),
    (Outcome::Scenario, "scenario"),
    (Outcome::OtherTest, "other-test"),
    (Outcome::Survived, "survived"),
    (Outcome::NotReached, "not-reached"),
];

impl Outcome {
    /// Its word in the file of results.
    pub fn word(self) -> &'static str {
        WORDS.iter().find(|(outcome, _)| *outcome == self).map_or("", |(_, word)| word)
    }

    /// The outcome of a word.
    pub fn of(word: &str) -> Option<Self> {
        WORDS.iter().find(|(_, known)| *known == word).map(|(outcome, _)| *outcome)
    }
}

/// What became of a mutant, and what noticed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What became of it.
    pub outcome: Outcome,
    /// What noticed it.
    pub by: String,
}

/// The results of all sessions. A later line about a mutant replaces an earlier one.
pub struct Results {
    file: std::fs::File,
    verdicts: BTreeMap<String, Verdict>,
}

impl Results {
    /// Reads the results that are there, and goes on from them.
    pub fn open(path: &Path) -> io::Result<Self> {
        let old = std::fs::read_to_string(path).unwrap_or_default();
        let mut verdicts = BTreeMap::new();
        for line in old.lines() {
            let mut fields = line.split('\t');
            let outcome = fields.next().and_then(Outcome::of);
            if let (Some(outcome), Some(name), Some(by)) = (outcome, fields.next(), fields.next()) {
                verdicts.insert(name.to_owned(), Verdict { outcome, by: by.to_owned() });
            }
        }
        let mut file = std::fs::File::create(path)?;
        file.write_all(old.as_bytes())?;
        Ok(Self { file, verdicts })
    }

    /// Adds what became of a mutant.
    pub fn add(&mut self, mutant: &Mutant, verdict: &Verdict) -> io::Result<()> {
        let (word, name) = (verdict.outcome.word(), mutant.name());
        self.file.write_all(format!("{word}\t{name}\t{}\n", verdict.by).as_bytes())?;
        self.verdicts.insert(name, verdict.clone());
        Ok(())
    }

    /// What became of a mutant, when it has run.
    pub fn of(&self, mutant: &Mutant) -> Option<Outcome> {
        self.verdicts.get(&mutant.name()).map(|verdict| verdict.outcome)
    }

    /// The mutants that nothing has noticed, one a line, and how many have run.
    pub fn survivors(&self, mutants: &[Mutant], dropped: &BTreeSet<u32>) -> String {
        let built = mutants.iter().filter(|mutant| !dropped.contains(&mutant.number));
        let ran: Vec<_> = built.filter_map(|mutant| Some((self.of(mutant)?, mutant))).collect();
        let mut out = format!(
            "# Mutants that nothing has noticed, of {} that ran of {} (`make mutants`).\n",
            ran.len(),
            mutants.len()
        );
        for (outcome, mutant) in ran {
            if matches!(outcome, Outcome::Survived | Outcome::NotReached) {
                out += &format!("{:12} {}\n", outcome.word(), mutant.name());
            }
        }
        out
    }

    /// A table of figures by crate, as Markdown.
    pub fn summary(&self, mutants: &[Mutant], dropped: &BTreeSet<u32>) -> String {
        let mut rows: BTreeMap<&str, [usize; 8]> = BTreeMap::new();
        for mutant in mutants {
            let column = match (dropped.contains(&mutant.number), self.of(mutant)) {
                (true, _) => 1,
                (false, Some(Outcome::OwnTest)) => 2,
                (false, Some(Outcome::Scenario)) => 3,
                (false, Some(Outcome::OtherTest)) => 4,
                (false, Some(Outcome::Survived)) => 5,
                (false, Some(Outcome::NotReached)) => 6,
                (false, None) => 7,
            };
            for row in [mutant.package(), "~all"] {
                let row = rows.entry(row).or_default();
                row[0] += 1;
                row[column] += 1;
            }
        }
        let mut out = String::from(
            "| crate | mutants | not built | own tests | scenarios | others' tests | survived | \
             not reached | not run |\n|---|---|---|---|---|---|---|---|---|\n",
        );
        for (package, figures) in rows {
            let cells: Vec<String> = figures.iter().map(usize::to_string).collect();
            out += &format!("| {} | {} |\n", package.trim_start_matches('~'), cells.join(" | "));
        }
        out
    }
}
