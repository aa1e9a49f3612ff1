//! What a mutant and a test are about, by their words: all tests of a crate may reach what each of
//! them needs to begin with, and those that are about it are seldom the quickest.

use std::collections::{BTreeMap, BTreeSet};

/// Words of paths and of the language that say nothing of what a text is about.
const NO_SUBJECT: &str = "lib mod main test self super crate let mut pub fn impl struct match if \
    else for in while loop return break continue as ref move async await const static where use \
    true false some none ok err u8 u16 u32 u64 u128 usize i64 f64 str string vec option result \
    box rc cell get set take replace new default into from iter collect map filter unwrap expect \
    borrow clone is has and or not to of the with by at len";

/// How much more a word of the path counts than one of the line.
const OF_PATH: u32 = 2;

/// The words of a text in small letters: `SyncMode::is_due` has `sync`, `mode`, and `due`.
pub(crate) fn words(text: &str) -> BTreeSet<String> {
    let mut spaced = String::new();
    let mut before = ' ';
    for letter in text.chars() {
        if !letter.is_alphanumeric() || before.is_lowercase() && letter.is_uppercase() {
            spaced.push(' ');
        }
        if letter.is_alphanumeric() {
            spaced.extend(letter.to_lowercase());
        }
        before = letter;
    }
    let singular = |word: &str| match word.len() > 3 && !word.ends_with("ss") {
        true => word.strip_suffix('s').unwrap_or(word).to_owned(),
        false => word.to_owned(),
    };
    let all = spaced.split_whitespace().map(singular);
    all.filter(|word| word.len() > 1 && !NO_SUBJECT.split(' ').any(|no| no == word)).collect()
}

/// The words of tests, and how much each word says.
pub struct Subjects {
    tests: Vec<BTreeSet<String>>,
    weights: BTreeMap<String, u32>,
}

impl Subjects {
    /// Those of tests with these names, in order.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let tests: Vec<BTreeSet<String>> = names.into_iter().map(words).collect();
        let mut having: BTreeMap<String, usize> = BTreeMap::new();
        for word in tests.iter().flatten() {
            *having.entry(word.clone()).or_default() += 1;
        }
        let weight = |(word, count): (String, usize)| (word, (tests.len() / count).ilog2() + 1);
        let weights = having.into_iter().map(weight).collect();
        Self { tests, weights }
    }

    /// How near each test is to a mutant in this source file: the sum over the words that its name
    /// has in common with the path, and with the mutant's line and function, of how rare they are.
    pub(crate) fn near(&self, file: &str, line: &str) -> Vec<u32> {
        let inner = file.split_once("/src/").map_or(file, |(_, inner)| inner);
        let of_path = words(inner.trim_end_matches(".rs"));
        let of_line = words(line);
        let weight = |test: &BTreeSet<String>, of: &BTreeSet<String>| -> u32 {
            test.intersection(of).filter_map(|word| self.weights.get(word)).sum()
        };
        let near = |test| OF_PATH * weight(test, &of_path) + weight(test, &of_line);
        self.tests.iter().map(near).collect()
    }
}
