//! The check of refused imports: the message must name the devices at fault and say what to do.
//!
//! What enters: the message, and which devices were struck. What leaves: what is wrong with it.
//! What always holds: a message may not call a device missing, behind, out of use or unreadable
//! unless something happened to it. Device names of the harness occur in no other word.
//! Who calls: `boot.rs`, after each refused import.

use std::fmt;

/// What the harness knows about one device.
#[derive(Clone, Debug)]
pub struct Suspect {
    /// Its name in messages.
    pub name: String,
    /// A fault struck it, or the administrator took it out or put it in.
    pub is_struck: bool,
}

/// What is wrong with a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadRefusal {
    /// It blames a device to which nothing happened.
    BlamesWell {
        /// The device.
        device: String,
    },
    /// It names none of the devices that were struck.
    NamesNone {
        /// The struck devices.
        struck: Vec<String>,
    },
    /// It does not say what to do.
    NoAdvice,
}

impl fmt::Display for BadRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRefusal::BlamesWell { device } => {
                write!(f, "it blames {device}, to which nothing happened")
            }
            BadRefusal::NamesNone { struck } => {
                write!(f, "it names none of the struck devices: {}", struck.join(", "))
            }
            BadRefusal::NoAdvice => f.write_str("it does not say what to do"),
        }
    }
}

/// Words before a list of devices that are not usable.
const LISTS: &[&str] = &[
    "missing: ",
    "missing (",
    "not rebuilt yet: ",
    "out of use: ",
    "without a readable superblock: ",
    "could not be looked at: ",
];

/// Words behind the name of a device that failed a command.
const FAILED: &[&str] = &[": open", ": read", ": write", ": flush", ": discard"];

/// Words of advice.
const ADVICE: &[&str] =
    &["bring ", " use -f", "import -m", "import with -m", "import -F", "import it"];

/// Words of letters and digits, each with the text behind it.
fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_end = |c: char| !c.is_ascii_alphanumeric();
    text.split(is_end).map(|word| {
        let end = word.as_ptr() as usize - text.as_ptr() as usize + word.len();
        (word, &text[end..])
    })
}

/// The suspects that `text` names.
fn named<'a>(text: &str, suspects: &'a [Suspect]) -> Vec<&'a Suspect> {
    suspects.iter().filter(|s| words(text).any(|(word, _)| word == s.name)).collect()
}

/// Suspects that the message calls missing, behind, out of use or unreadable.
fn blamed<'a>(message: &str, suspects: &'a [Suspect]) -> Vec<&'a Suspect> {
    let mut out = Vec::new();
    for intro in LISTS {
        for (at, _) in message.match_indices(intro) {
            let list = &message[at + intro.len()..];
            let end = list.find([';', ')']).unwrap_or(list.len());
            out.extend(named(&list[..end], suspects));
        }
    }
    let failed = |s: &&Suspect| {
        words(message).any(|(word, behind)| {
            word == s.name && FAILED.iter().any(|what| behind.starts_with(what))
        })
    };
    out.extend(suspects.iter().filter(failed));
    out
}

/// Words of a refusal whose cause is another machine.
const OTHER_MACHINE: &[&str] = &["on another machine", "by another machine"];

/// Checks the message of a refused import.
pub fn judge(message: &str, suspects: &[Suspect]) -> Result<(), BadRefusal> {
    if let Some(well) = blamed(message, suspects).into_iter().find(|s| !s.is_struck) {
        return Err(BadRefusal::BlamesWell { device: well.name.clone() });
    }
    if OTHER_MACHINE.iter().any(|what| message.contains(what)) {
        return Ok(());
    }
    if !named(message, suspects).iter().any(|s| s.is_struck) {
        let struck = suspects.iter().filter(|s| s.is_struck).map(|s| s.name.clone()).collect();
        return Err(BadRefusal::NamesNone { struck });
    }
    if !ADVICE.iter().any(|advice| message.contains(advice)) {
        return Err(BadRefusal::NoAdvice);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
