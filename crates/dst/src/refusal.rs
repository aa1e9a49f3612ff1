//! What a refused import must say: which devices lack, and what to do.
//!
//! Devices have names that no other word is like, so a message is judged by those that are in it. Who
//! runs the scenario knows to which of them something happened; a device to which nothing did is never
//! said to be missing, behind, out of use or unreadable.

/// What the harness knows of one device.
#[derive(Clone, Debug)]
pub struct Suspect {
    /// As messages call it.
    pub name: String,
    /// A fault was injected that loses, damages, refuses or withholds something, or the administrator
    /// took it out or put it in.
    pub struck: bool,
}

/// What comes before a list of devices that lack in one way or another.
const LISTS: &[&str] = &[
    "missing: ",
    "missing (",
    "not rebuilt yet: ",
    "out of use: ",
    "without a readable superblock: ",
    "could not be looked at: ",
];

/// What a device did not do, behind its name.
const FAILED: &[&str] = &[": open", ": read", ": write", ": flush", ": discard"];

/// What there is to do.
const ADVICE: &[&str] =
    &["bring ", " use -f", "import -m", "import with -m", "import -F", "import it"];

/// Words of letters and digits, and what comes behind each.
fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_end = |c: char| !c.is_ascii_alphanumeric();
    text.split(is_end).map(|word| {
        let end = word.as_ptr() as usize - text.as_ptr() as usize + word.len();
        (word, &text[end..])
    })
}

/// Names of `suspects` in `text`.
fn named<'a>(text: &str, suspects: &'a [Suspect]) -> Vec<&'a Suspect> {
    suspects.iter().filter(|s| words(text).any(|(word, _)| word == s.name)).collect()
}

/// Devices that the message says are missing, behind, out of use or unreadable.
fn lacking<'a>(message: &str, suspects: &'a [Suspect]) -> Vec<&'a Suspect> {
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

/// What a refusal says that is not about devices: somebody else has the pool, or seems to.
const ELSEWHERE: &[&str] = &["on another machine", "by another machine"];

/// What is wrong with the message of an import that was refused.
pub fn judge(message: &str, suspects: &[Suspect]) -> Result<(), String> {
    if let Some(well) = lacking(message, suspects).into_iter().find(|s| !s.struck) {
        return Err(format!("it blames {}, to which nothing has happened", well.name));
    }
    if ELSEWHERE.iter().any(|what| message.contains(what)) {
        return Ok(());
    }
    if !named(message, suspects).iter().any(|s| s.struck) {
        let struck: Vec<&str> =
            suspects.iter().filter(|s| s.struck).map(|s| s.name.as_str()).collect();
        return Err(format!("it names none of those that were struck: {}", struck.join(", ")));
    }
    if !ADVICE.iter().any(|advice| message.contains(advice)) {
        return Err("it does not say what to do".to_owned());
    }
    Ok(())
}
