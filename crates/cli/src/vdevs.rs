//! Groups and log devices from the words after POOL, in the syntax of zpool.

use forebay_pool::spec::{GroupSpec, LogSpec, PoolSpec};
use forebay_units::Layout;

use crate::failure::{ErrorCode, Failure};
use crate::object_stores;

/// Devices of one group, or of one mirror of log devices.
const DEVICES_MAX: usize = 24;

/// The keyword of a group in object stores.
const OBJECTS: &str = "objects";

/// What the words that are being read name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Data,
    Log,
    Cache,
    Spare,
}

/// A group whose devices are still being read.
struct OpenGroup {
    /// The keyword; `None` for devices before any keyword.
    word: Option<&'static str>,
    layout: Layout,
    /// All of its devices are in object stores.
    in_stores: bool,
    devices: Vec<String>,
}

impl OpenGroup {
    /// A group of `layout`, named by `word`.
    fn new(word: Option<&'static str>, layout: Layout) -> Self {
        Self { word, layout, in_stores: false, devices: Vec::new() }
    }
}

/// Reads `[raid0|mirror|raidz1|raidz2|raidz3] [objects] DEV... [log [mirror] DEV...]
/// [cache DEV...] [spare DEV...]`.
///
/// Checks what the words alone tell: keywords, counts, and devices named twice.
pub fn parse_vdevs(words: &[String]) -> Result<PoolSpec, Failure> {
    let mut spec = PoolSpec::default();
    let mut section = Section::Data;
    let mut open = OpenGroup::new(None, Layout::Raid0);
    for word in words {
        let begins = match word.as_str() {
            "log" | "logs" => Some(Section::Log),
            "cache" => Some(Section::Cache),
            "spare" | "spares" => Some(Section::Spare),
            _ => None,
        };
        if let Some(next) = begins {
            check_not_empty(section, &open, &spec)?;
            close(open, section, &mut spec)?;
            section = next;
            open = OpenGroup::new(None, Layout::Raid0);
            continue;
        }
        if matches!(word.as_str(), "special" | "dedup") {
            return Err(Failure::usage(format!("'{word}' devices are not supported"))
                .with_hint(format!("if it is a file, write ./{word}")));
        }
        if is_unknown_keyword(word) {
            let message = format!(
                "'{word}' is not a kind of group: use {}",
                Layout::ALL.map(Layout::as_str).join(", ")
            );
            return Err(
                Failure::usage(message).with_hint(format!("if it is a file, write ./{word}"))
            );
        }
        match keyword(word) {
            Some((OBJECTS, layout)) => {
                // Behind a layout it says what the devices of that group are.
                if open.word.is_none() || open.in_stores || !open.devices.is_empty() {
                    close(open, section, &mut spec)?;
                    open = OpenGroup::new(Some(OBJECTS), layout);
                }
                open.in_stores = true;
            }
            Some((name, layout)) => {
                close(open, section, &mut spec)?;
                open = OpenGroup::new(Some(name), layout);
            }
            None => open.devices.push(word.clone()),
        }
    }
    check_not_empty(section, &open, &spec)?;
    close(open, section, &mut spec)?;
    let all: Vec<&String> = devices_of(&spec).collect();
    for (at, device) in all.iter().enumerate() {
        if all[..at].contains(device) {
            let message = format!("{device} is named twice");
            return Err(Failure::new(ErrorCode::DeviceNamedTwice, message)
                .with_hint("name each device once"));
        }
    }
    Ok(spec)
}

/// Refuses a `log`, `cache` or `spare` without devices.
fn check_not_empty(section: Section, open: &OpenGroup, spec: &PoolSpec) -> Result<(), Failure> {
    let nothing_open = open.word.is_none() && open.devices.is_empty();
    match section {
        Section::Log if nothing_open && spec.logs.is_empty() => {
            Err(Failure::usage("no device follows 'log'"))
        }
        Section::Cache if nothing_open && spec.caches.is_empty() => {
            Err(Failure::usage("no device follows 'cache'"))
        }
        Section::Spare if nothing_open && spec.spares.is_empty() => {
            Err(Failure::usage("no device follows 'spare'"))
        }
        _ => Ok(()),
    }
}

/// Every device of `spec`, data devices first.
pub fn devices_of(spec: &PoolSpec) -> impl Iterator<Item = &String> {
    let data = spec.groups.iter().flat_map(|g| &g.devices);
    let logs = spec.logs.iter().flat_map(|l| &l.devices);
    data.chain(logs).chain(&spec.caches).chain(&spec.spares)
}

/// The same, to be replaced in place.
pub fn devices_of_mut(spec: &mut PoolSpec) -> impl Iterator<Item = &mut String> {
    let data = spec.groups.iter_mut().flat_map(|g| &mut g.devices);
    let logs = spec.logs.iter_mut().flat_map(|l| &mut l.devices);
    data.chain(logs).chain(&mut spec.caches).chain(&mut spec.spares)
}

/// Whether the word is meant as a keyword (`raidz4`, `draid1`), and is none.
fn is_unknown_keyword(word: &str) -> bool {
    let looks_like_one =
        ["raid", "draid", "mirror"].iter().any(|beginning| word.starts_with(beginning));
    looks_like_one && keyword(word).is_none() && !word.contains(['/', '.'])
}

fn keyword(word: &str) -> Option<(&'static str, Layout)> {
    if word == OBJECTS {
        return Some((OBJECTS, Layout::Raid0));
    }
    let layout = Layout::parse(if word == "raidz" { "raidz1" } else { word })?;
    Some((layout.as_str(), layout))
}

fn close(open: OpenGroup, section: Section, spec: &mut PoolSpec) -> Result<(), Failure> {
    let OpenGroup { word, layout, in_stores, devices } = open;
    let singles = match section {
        Section::Cache => Some(("cache", &mut spec.caches)),
        Section::Spare => Some(("spare", &mut spec.spares)),
        Section::Data | Section::Log => None,
    };
    if let Some((kind, list)) = singles {
        if let Some(word) = word {
            let what = if kind == "cache" { "cache device" } else { "spare" };
            return Err(Failure::usage(format!(
                "a {what} is a single device, not {word}; name data groups before '{kind}'"
            )));
        }
        list.extend(devices);
        return Ok(());
    }
    if in_stores {
        if let Some(device) = devices.iter().find(|device| !object_stores::is_name(device)) {
            let message = format!("{device} is not in an object store");
            return Err(Failure::usage(message)
                .with_hint("behind 'objects' there are names such as s3://BUCKET/PREFIX"));
        }
    }
    let in_log = section == Section::Log;
    let least = match layout {
        Layout::Raid0 => 1,
        Layout::Mirror | Layout::Raidz1 => 2,
        Layout::Raidz2 => 3,
        Layout::Raidz3 => 4,
    };
    match word {
        None if devices.is_empty() => return Ok(()),
        Some(word) if devices.len() < least => {
            return Err(Failure::usage(format!(
                "{word} needs {least} devices at least, not {}",
                devices.len()
            )));
        }
        _ => {}
    }
    let is_mirror = layout == Layout::Mirror;
    if devices.len() > DEVICES_MAX && (!in_log || is_mirror) {
        let (len, word) = (devices.len(), word.unwrap_or("raid0"));
        let message = format!("{len} devices are more than the {DEVICES_MAX} of one {word}");
        return Err(Failure::new(ErrorCode::TooManyDevices, message).with_hint("make several"));
    }
    if !in_log {
        spec.groups.push(GroupSpec { layout, devices });
        return Ok(());
    }
    match (word, layout) {
        (_, Layout::Mirror) => spec.logs.push(LogSpec { devices }),
        (None, _) => {
            spec.logs.extend(devices.into_iter().map(|d| LogSpec { devices: vec![d] }));
        }
        (Some(word), _) => {
            return Err(Failure::usage(format!(
                "a log device is single or a mirror, not {word}; name data groups before 'log'"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
