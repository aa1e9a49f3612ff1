//! Ways to purge a device before it is measured, and what speaks against each.
//!
//! What enters: a way, facts of the device, what its tool prints of it. What leaves: a command for
//! the tool, or a refusal. What always holds: a way that would erase more than the device that the
//! operator named is refused. Who calls: `forebay qualify --purge`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How a device is purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purge {
    /// Every block is discarded, with the kernel's own command.
    Discard,
    /// NVMe Format with an erasure of user data.
    NvmeFormat,
    /// NVMe Sanitize: block erase, else crypto erase.
    NvmeSanitize,
    /// ATA SECURITY ERASE UNIT.
    AtaSecureErase,
}

impl Purge {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Discard, Self::NvmeFormat, Self::NvmeSanitize, Self::AtaSecureErase];

    /// The word that names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Discard => "discard",
            Self::NvmeFormat => "nvme-format",
            Self::NvmeSanitize => "nvme-sanitize",
            Self::AtaSecureErase => "ata-secure-erase",
        }
    }

    /// How long it may take, in milliseconds.
    pub(crate) fn limit_millis(self) -> u64 {
        const MINUTE: u64 = 60_000;
        match self {
            Self::Discard | Self::NvmeFormat => 10 * MINUTE,
            Self::NvmeSanitize | Self::AtaSecureErase => 240 * MINUTE,
        }
    }
}

/// Why a device is not purged in a way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PurgeRefusal {
    /// The drive has no such command.
    NotOffered {
        /// What it lacks.
        command: &'static str,
    },
    /// The command would erase other namespaces of the drive too.
    OtherNamespaces {
        /// How many the drive has.
        count: usize,
    },
    /// The firmware of the machine froze the drive's security commands.
    Frozen,
    /// A password locks the drive, or is set.
    HasPassword,
    /// What the tool printed cannot be read.
    NotUnderstood,
}

impl std::fmt::Display for PurgeRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotOffered { command } => write!(f, "the drive does not offer {command}"),
            Self::OtherNamespaces { count } => {
                write!(f, "it would erase all {count} namespaces of the drive")
            }
            Self::Frozen => f.write_str(
                "the drive's security commands are frozen, which the machine's firmware does when \
                 it starts: put the drive in after that, or suspend the machine once",
            ),
            Self::HasPassword => f.write_str("a password is set on the drive"),
            Self::NotUnderstood => f.write_str("what the tool prints of the drive is not known"),
        }
    }
}

impl std::error::Error for PurgeRefusal {}

/// Which erasure a drive is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sanitize {
    /// All blocks are erased.
    Block,
    /// The key of all data is changed.
    Crypto,
}

fn bits(page: &Value, name: &str) -> Option<u64> {
    page[name].as_u64()
}

/// Whether Format may be sent: `controller` is `nvme id-ctrl -o json`, `namespaces` the number of
/// active ones.
///
/// # Errors
/// The drive has no Format, or it would hit other namespaces.
pub fn may_format(controller: &str, namespaces: usize) -> Result<(), PurgeRefusal> {
    const FORMAT: u64 = 1 << 1;
    /// Bit 0: Format is for all namespaces; bit 1: its erasure is.
    const FOR_ALL: u64 = 0b11;
    let page: Value = serde_json::from_str(controller).map_err(|_| PurgeRefusal::NotUnderstood)?;
    let offered = bits(&page, "oacs").ok_or(PurgeRefusal::NotUnderstood)?;
    let attributes = bits(&page, "fna").ok_or(PurgeRefusal::NotUnderstood)?;
    if offered & FORMAT == 0 {
        return Err(PurgeRefusal::NotOffered { command: "NVMe Format" });
    }
    if attributes & FOR_ALL != 0 && namespaces != 1 {
        return Err(PurgeRefusal::OtherNamespaces { count: namespaces });
    }
    Ok(())
}

/// Which Sanitize may be sent.
///
/// # Errors
/// The drive has none, or it has other namespaces: Sanitize always erases all of them.
pub fn may_sanitize(controller: &str, namespaces: usize) -> Result<Sanitize, PurgeRefusal> {
    const CRYPTO: u64 = 1;
    const BLOCK: u64 = 1 << 1;
    let page: Value = serde_json::from_str(controller).map_err(|_| PurgeRefusal::NotUnderstood)?;
    let offered = bits(&page, "sanicap").ok_or(PurgeRefusal::NotUnderstood)?;
    let way = match offered {
        _ if offered & BLOCK != 0 => Sanitize::Block,
        _ if offered & CRYPTO != 0 => Sanitize::Crypto,
        _ => return Err(PurgeRefusal::NotOffered { command: "NVMe Sanitize" }),
    };
    if namespaces != 1 {
        return Err(PurgeRefusal::OtherNamespaces { count: namespaces });
    }
    Ok(way)
}

/// Active namespaces, from `nvme list-ns -o json`.
///
/// # Errors
/// The text is something else.
pub fn namespaces(text: &str) -> Result<usize, PurgeRefusal> {
    let page: Value = serde_json::from_str(text).map_err(|_| PurgeRefusal::NotUnderstood)?;
    let list = page["nsid_list"].as_array().ok_or(PurgeRefusal::NotUnderstood)?;
    Ok(list.len())
}

/// How a Sanitize goes, from `nvme sanitize-log -o json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SanitizeState {
    /// It goes on.
    Running,
    /// It is done.
    Done,
    /// It failed.
    Failed,
}

/// The state of the last Sanitize.
///
/// # Errors
/// The text is something else.
pub fn sanitize_state(text: &str) -> Result<SanitizeState, PurgeRefusal> {
    /// The lowest three bits of SSTAT.
    const STATE: u64 = 0b111;
    let page: Value = serde_json::from_str(text).map_err(|_| PurgeRefusal::NotUnderstood)?;
    // Some versions put the log below the device's name.
    let log = match page.as_object().and_then(|o| o.values().next()) {
        Some(inner) if page.get("sstat").is_none() && inner.is_object() => inner,
        _ => &page,
    };
    let status = &log["sstat"];
    let status = status.as_u64().or_else(|| status["status"].as_u64());
    match status.ok_or(PurgeRefusal::NotUnderstood)? & STATE {
        2 => Ok(SanitizeState::Running),
        3 => Ok(SanitizeState::Failed),
        _ => Ok(SanitizeState::Done),
    }
}

/// Whether an ATA drive may be erased, from `hdparm -I`.
///
/// # Errors
/// The drive has no security commands, or they are frozen, or a password is set.
pub fn may_secure_erase(text: &str) -> Result<(), PurgeRefusal> {
    let refused = PurgeRefusal::NotOffered { command: "ATA secure erase" };
    let (_, security) = text.split_once("\nSecurity:").ok_or(refused.clone())?;
    let lines = security.lines().skip(1).take_while(|line| line.starts_with(char::is_whitespace));
    let words: Vec<Vec<&str>> = lines.map(|line| line.split_whitespace().collect()).collect();
    let says = |wanted: &[&str]| words.iter().any(|line| line == wanted);
    if !says(&["supported"]) {
        return Err(refused);
    }
    if says(&["locked"]) || says(&["enabled"]) {
        return Err(PurgeRefusal::HasPassword);
    }
    if !says(&["not", "frozen"]) {
        return Err(PurgeRefusal::Frozen);
    }
    Ok(())
}
