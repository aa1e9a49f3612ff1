//! The device tree of `pool status`, and the fields above it.

use forebay_pool::status::{Health, Protection, VdevKind, VdevNote, VdevStatus};
use forebay_units::Layout;

use super::numbers::count;
use crate::escape::visible;

/// The tree of names and states, each line after a tab; with error counts (exact or not) and a
/// header when `errors_shown` is given.
#[must_use]
pub fn device_tree(
    pool: &str,
    state: Health,
    groups: &[VdevStatus],
    logs: &[VdevStatus],
    caches: &[VdevStatus],
    errors_shown: Option<bool>,
) -> String {
    let mut lines = Vec::new();
    let sum = |f: fn(&VdevStatus) -> u64| groups.iter().chain(logs).map(f).sum::<u64>();
    let errors = [sum(|v| v.read_errors), sum(|v| v.write_errors), sum(|v| v.checksum_errors)];
    lines.push(Line::new(pool.to_owned(), state, errors, String::new()));
    for group in groups {
        tree_lines(group, 1, &mut lines);
    }
    for (heading, list) in [("logs", logs), ("cache", caches)] {
        if !list.is_empty() {
            lines.push(Line { name: heading.to_owned(), rest: None, note: String::new() });
        }
        list.iter().for_each(|vdev| tree_lines(vdev, 1, &mut lines));
    }
    let width = lines.iter().map(|l| l.name.chars().count()).max().unwrap_or(0).max(10);
    let cells = |name: &str, state: &str, counts: [String; 3]| match errors_shown {
        Some(_) => {
            let [r, w, c] = counts;
            format!("{name:<width$}  {state:<8} {r:>5} {w:>5} {c:>5}")
        }
        None => format!("{name:<width$}  {state:<8}"),
    };
    let mut text = String::new();
    if errors_shown.is_some() {
        let titles = ["READ", "WRITE", "CKSUM"].map(str::to_owned);
        text.push_str(&format!("\t{}\n", cells("NAME", "STATE", titles)));
    }
    for line in lines {
        let row = match line.rest {
            None => line.name,
            Some((state, errors)) => {
                let counts = errors.map(|e| count(e, errors_shown.unwrap_or(false)));
                format!("{}  {}", cells(&line.name, state.as_str(), counts), line.note)
            }
        };
        text.push_str(&format!("\t{}\n", row.trim_end()));
    }
    text
}

struct Line {
    name: String,
    rest: Option<(Health, [u64; 3])>,
    note: String,
}

impl Line {
    fn new(name: String, state: Health, errors: [u64; 3], note: String) -> Self {
        Self { name, rest: Some((state, errors)), note }
    }
}

fn tree_lines(vdev: &VdevStatus, depth: usize, lines: &mut Vec<Line>) {
    // A log on one device is a mirror of one side: show the device, as zpool does.
    if let (VdevKind::Group(Layout::Mirror), [only]) = (vdev.kind, &vdev.children[..]) {
        return tree_lines(only, depth, lines);
    }
    let errors = [vdev.read_errors, vdev.write_errors, vdev.checksum_errors];
    let name = format!("{}{}", "  ".repeat(depth), visible(&vdev.name));
    lines.push(Line::new(name, vdev.state, errors, notes(vdev)));
    for child in &vdev.children {
        tree_lines(child, depth + 1, lines);
    }
}

/// What stands behind a device's counts, such as `(resilvering) (reserved)`.
fn notes(vdev: &VdevStatus) -> String {
    let is_reserved = vdev.protection == Some(Protection::Reservation);
    let note = vdev.note.as_ref().map(note_text);
    let memory = vdev.memory.as_ref().map(|memory| format!("memory: {}", memory.state));
    let reserved = is_reserved.then(|| "reserved".to_owned());
    let all = note.into_iter().chain(memory).chain(reserved);
    all.map(|note| format!("({note})")).collect::<Vec<_>>().join(" ")
}

fn note_text(note: &VdevNote) -> String {
    match note {
        VdevNote::Resilvering => "resilvering".to_owned(),
        VdevNote::AwaitingResilver => "awaiting resilver".to_owned(),
        VdevNote::TooManyErrors => "too many errors".to_owned(),
        VdevNote::Missing => "missing".to_owned(),
        VdevNote::NoPermission => "no permission".to_owned(),
        VdevNote::NotOpened { error } => format!("cannot be opened: {error}"),
        VdevNote::NoAnswer => "does not answer".to_owned(),
        VdevNote::InUse => "in use".to_owned(),
        VdevNote::NoLabel => "no label of a pool".to_owned(),
        VdevNote::OtherPool { name } => format!("label of pool '{}'", visible(name)),
        VdevNote::FailedEarlier => "failed earlier".to_owned(),
        VdevNote::Returned => "back since; 'pool online' takes it".to_owned(),
    }
}

/// `title: text`, wrapped to 80 columns under the text's first word.
pub(super) fn field(title: &str, text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is one from the start");
        if !last.is_empty() && last.len() + 1 + word.len() > 70 {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    format!("{title}: {}\n", lines.join("\n\t"))
}
