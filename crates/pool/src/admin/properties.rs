//! Properties of pools and volumes, and members in the form that the configuration keeps.

use std::collections::BTreeMap;

use forebay_array::MemberState;
use forebay_cache::Policy;
use forebay_format::config::{MemberConfig, MemberUse};
use forebay_units::{DeviceId, parse_bytes};

use crate::admin::error::{NameError, PropertyError};
use crate::schedule::Schedule;
use crate::settings::{FailMode, LogWitness, Settings, parse_milli, parse_span_secs};
use crate::store_prices::{DEFAULT_PRICES, StorePrices};
use crate::{Compression, DedupMode, Pool, SyncMode};

/// A property that can be set.
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// The value without a setting.
    pub default: &'static str,
    /// What it may be, in words.
    pub values: &'static str,
    /// What it does, in sentences.
    pub effect: &'static str,
    /// When a new value takes effect.
    pub takes_effect: &'static str,
    check: fn(&str) -> bool,
}

/// The property of a volume that its configuration keeps as `sparse`.
pub(crate) const RESERVATION: &str = "reservation";

/// The property of a volume that says whether its blocks are stored once for the whole pool.
pub(crate) const DEDUP: &str = "dedup";
/// The property of a volume that says how its blocks are compressed.
pub(crate) const COMPRESSION: &str = "compression";

const AT_ONCE: &str = "at once";
const AT_IMPORT: &str = "at the next import";

fn on_off(value: &str) -> bool {
    matches!(value, "on" | "off")
}

fn bytes(value: &str) -> bool {
    value == "auto" || bytes_within(value, 1 << 20, 1 << 40)
}

fn bytes_within(value: &str, least: u64, most: u64) -> bool {
    parse_bytes(value).is_ok_and(|bytes| (least..=most).contains(&bytes))
}

fn is_within(value: &str, least: u64, most: u64) -> bool {
    value.parse::<u64>().is_ok_and(|number| (least..=most).contains(&number))
}

fn seconds(value: &str) -> bool {
    value.parse::<u64>().is_ok_and(|s| (1..=600).contains(&s))
}

fn seconds_or_off(value: &str) -> bool {
    value == "off" || value.parse::<u64>().is_ok_and(|s| (1..=3600).contains(&s))
}

fn span_or_off(value: &str) -> bool {
    value == "off" || parse_span_secs(value).is_some()
}

/// Properties of a pool.
pub const POOL_PROPERTIES: &[Property] = &[
    Property {
        name: "autoreplace",
        default: "off",
        values: "on or off",
        effect: "An empty device that appears at the path of a failed data device replaces it.",
        takes_effect: AT_ONCE,
        check: on_off,
    },
    Property {
        name: "autotrim",
        default: "on",
        values: "on or off",
        effect: "Freed segments are discarded on the devices. In a file they become holes, and \
                 writing to a hole costs more.",
        takes_effect: AT_ONCE,
        check: on_off,
    },
    Property {
        name: "cache_dwpd",
        default: "1",
        values: "drive writes a day from 0.001 to 1000, or off (no limit)",
        effect: "How much is written to each cache device a day. The first time around is free.",
        takes_effect: AT_ONCE,
        check: |value| value == "off" || parse_milli(value).is_some(),
    },
    Property {
        name: "cache_policy",
        default: "arc",
        values: "arc, s3fifo, s3fifo-1, sieve, lru or fifo",
        effect: "Which blocks leave the read cache when it is full. 'forebay trace cache' compares \
                 them for a trace.",
        takes_effect: AT_IMPORT,
        check: |value| value.parse::<Policy>().is_ok(),
    },
    Property {
        name: "cache_size",
        default: "auto",
        values: "auto (a quarter of the memory, 64M at least), off, or a size from 64K to 1T",
        effect: "Memory for blocks that were read. Less of it is used while others need memory.",
        takes_effect: AT_ONCE,
        check: |value| value == "off" || value == "auto" || bytes_within(value, 64 << 10, 1 << 40),
    },
    Property {
        name: "comment",
        default: "-",
        values: "text of at most 200 bytes without control characters",
        effect: "A note for people.",
        takes_effect: AT_ONCE,
        check: |value| value.len() <= 200 && !value.contains(char::is_control),
    },
    Property {
        name: "dedup_index_size",
        default: "64M",
        values: "a size from 1M to 1T",
        effect: "Memory for the fingerprints of de-duplicated blocks, 26 to 53 bytes each. When it \
                 is full, copies are found by some of their blocks and the neighbors of those.",
        takes_effect: AT_ONCE,
        check: |value| bytes_within(value, 1 << 20, 1 << 40),
    },
    Property {
        name: "device_timeout",
        default: "30",
        values: "seconds from 1 to 3600, or off",
        effect: "A data device that does not answer for so long is given up.",
        takes_effect: AT_ONCE,
        check: seconds_or_off,
    },
    Property {
        name: "dirty_limit",
        default: "auto",
        values: "auto, or a size from 1M to 1T",
        effect: "Writers wait while so much data in memory is not yet in the main store.",
        takes_effect: AT_IMPORT,
        check: bytes,
    },
    Property {
        name: "failmode",
        default: "wait",
        values: "wait or continue",
        effect: "What clients see while the pool is suspended, because too few devices take \
                 writes: their requests wait until 'forebay pool clear' goes on, or fail.",
        takes_effect: AT_ONCE,
        check: |value| FailMode::parse(value).is_some(),
    },
    Property {
        name: "footer_cache",
        default: "auto",
        values: "auto (64M), or a size from 1M to 1T",
        effect: "Memory for the checksums of sequential data: 4K for each 3M.",
        takes_effect: AT_IMPORT,
        check: bytes,
    },
    Property {
        name: "log_timeout",
        default: "5",
        values: "seconds from 1 to 3600, or off",
        effect: "A log device that does not answer for so long is given up.",
        takes_effect: AT_ONCE,
        check: seconds_or_off,
    },
    Property {
        name: "log_witness",
        default: "idle",
        values: "second, idle or always",
        effect: "When data devices note how far the log has come, so that an import notices a log \
                 device that came back without its last frames: within a second, at once while \
                 they have nothing else to write (in an object store within five seconds), or \
                 before a durable write is answered (as slow as a data device).",
        takes_effect: AT_ONCE,
        check: |value| LogWitness::parse(value).is_some(),
    },
    Property {
        name: "outage_warning",
        default: "60",
        values: "seconds from 1 to 3600, or off",
        effect: "A warning is given when the object store is away and memory and the log bear the \
                 present rate of writes for a shorter time.",
        takes_effect: AT_ONCE,
        check: seconds_or_off,
    },
    Property {
        name: "scan_rate",
        default: "auto",
        values: "auto, or bytes a second from 1M to 1T",
        effect: "How fast a scrub or resilver reads. auto leaves half of the time to clients.",
        takes_effect: AT_ONCE,
        check: bytes,
    },
    Property {
        name: "scrub_every",
        default: "off",
        values: "off, or a time from 1h to 3650d, such as 12h or 30d",
        effect: "A scrub begins by itself so long after the last one began.",
        takes_effect: AT_ONCE,
        check: span_or_off,
    },
    Property {
        name: "store_prices",
        default: DEFAULT_PRICES,
        values: "prices such as put=0.005,get=0.0004,month=0.023,egress=0.09, in any currency: of \
                 a thousand puts, a thousand gets, a GiB stored for a month, a GiB read",
        effect: "What an object store costs, for 'forebay pool list' and 'forebay pool status -v'.",
        takes_effect: AT_ONCE,
        check: |value| StorePrices::parse(value).is_some(),
    },
    Property {
        name: "txg_timeout",
        default: "5",
        values: "seconds from 1 to 600",
        effect: "Writes are committed to the main store after so long at the latest.",
        takes_effect: AT_ONCE,
        check: seconds,
    },
];

/// Properties of a volume.
pub const VOLUME_PROPERTIES: &[Property] = &[
    Property {
        name: "sync",
        default: "standard",
        values: "standard, always or disabled",
        effect: "When a write is durable before its answer: if the client asks, always, or never.",
        takes_effect: AT_ONCE,
        check: |value| SyncMode::parse(value).is_some(),
    },
    Property {
        name: "comment",
        default: "-",
        values: "text of at most 200 bytes without control characters",
        effect: "A note for people.",
        takes_effect: AT_ONCE,
        check: |value| value.len() <= 200 && !value.contains(char::is_control),
    },
    Property {
        name: "bandwidth_limit",
        default: "none",
        values: "none, or bytes a second from 1M to 1T",
        effect: "Reads and writes wait so that they are no more.",
        takes_effect: AT_ONCE,
        check: |value| value == "none" || (value != "auto" && bytes(value)),
    },
    Property {
        name: "cache_writes",
        default: "off",
        values: "on or off",
        effect: "What is written goes to the read cache as well. 'forebay trace cache' tells for a \
                 trace whether that pays.",
        takes_effect: AT_ONCE,
        check: on_off,
    },
    Property {
        name: COMPRESSION,
        default: "off",
        values: "off, lz4, zstd, or zstd-1 to zstd-19",
        effect: "Blocks that are written are compressed, if that saves an eighth; zstd alone is \
                 zstd-3. Only for sparse volumes.",
        takes_effect: AT_ONCE,
        check: |value| Compression::parse(value).is_some(),
    },
    Property {
        name: DEDUP,
        default: "off",
        values: "off, on or verify",
        effect: "Blocks that are written are stored once for the whole pool if their contents are \
                 alike; verify compares them first. Only for sparse volumes.",
        takes_effect: AT_ONCE,
        check: |value| DedupMode::parse(value).is_some(),
    },
    Property {
        name: "iops_limit",
        default: "none",
        values: "none, or requests a second from 1 to 1000000000",
        effect: "Requests wait so that they are no more; flushes are not counted.",
        takes_effect: AT_ONCE,
        check: |value| value == "none" || is_within(value, 1, 1_000_000_000),
    },
    Property {
        name: "primarycache",
        default: "all",
        values: "all, metadata or none",
        effect: "Whether reads go through the read cache. Volumes have no metadata there, so \
                 metadata means none.",
        takes_effect: AT_ONCE,
        check: |value| matches!(value, "all" | "metadata" | "none"),
    },
    Property {
        name: "snapshot_every",
        default: "off",
        values: "off, or how many are kept of each kind, such as hourly=24,daily=7,weekly=4; the \
                 kinds are frequent (15 minutes), hourly, daily, weekly, monthly and yearly",
        effect: "Snapshots are taken by themselves at these times (UTC), and the oldest ones of \
                 more than so many are destroyed.",
        takes_effect: AT_ONCE,
        check: |value| Schedule::parse(value).is_some(),
    },
    Property {
        name: "weight",
        default: "100",
        values: "a number from 1 to 1000",
        effect: "The volume's share of the pool's writing, against those of other volumes that \
                 write at the same time.",
        takes_effect: AT_ONCE,
        check: |value| is_within(value, 1, 1000),
    },
    Property {
        name: RESERVATION,
        default: "auto",
        values: "auto or none",
        effect: "Space that is set aside: the whole size (thick), or none (thin).",
        takes_effect: AT_ONCE,
        check: |value| matches!(value, "auto" | "none"),
    },
];

pub(crate) fn check_property(
    known: &[Property],
    name: &str,
    value: &str,
) -> Result<(), PropertyError> {
    let Some(property) = known.iter().find(|p| p.name == name) else {
        let (property, known) = (name.to_owned(), known.iter().map(|p| p.name).collect());
        return Err(PropertyError::Unknown { property, known });
    };
    if (property.check)(value) {
        return Ok(());
    }
    Err(PropertyError::BadValue {
        property: property.name,
        value: value.to_owned(),
        expected: property.values,
    })
}

/// Refuses a name that a pool cannot have. One that reads as a number could not be told from an id,
/// or from the seconds of 'pool iostat'.
pub(crate) fn check_pool_name(name: &str) -> Result<(), NameError> {
    const RESERVED: [&str; 7] = ["mirror", "raid0", "raidz1", "raidz2", "raidz3", "log", "spare"];
    let name = name.to_owned();
    if !is_name(&name) || !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(NameError::BadPool { name });
    }
    if RESERVED.contains(&name.as_str()) {
        return Err(NameError::Reserved { name });
    }
    Ok(())
}

/// Refuses a name that a volume cannot have.
pub(crate) fn check_volume_name(name: &str) -> Result<(), NameError> {
    if is_name(name) && name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Ok(());
    }
    Err(NameError::BadVolume { name: name.to_owned() })
}

pub(crate) fn check_snapshot_name(name: &str) -> Result<(), NameError> {
    if is_name(name) {
        return Ok(());
    }
    Err(NameError::BadSnapshot { name: name.to_owned() })
}

fn is_name(name: &str) -> bool {
    const MAX_BYTES: usize = 200;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':' | '-');
    (1..=MAX_BYTES).contains(&name.len()) && name.chars().all(is_allowed)
}

/// All values, defaults included.
pub(crate) fn effective(
    known: &[Property],
    set: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let value = |p: &Property| set.get(p.name).cloned().unwrap_or_else(|| p.default.to_owned());
    known.iter().map(|p| (p.name.to_owned(), value(p))).collect()
}

impl Pool {
    /// Takes over the properties of the configuration.
    pub(crate) fn apply_properties(&self) {
        let settings = Settings::of(&self.config.borrow().properties);
        self.settings.set(settings);
        self.log.wait_for_witness(settings.log_witness == LogWitness::Always);
        self.apply_deadlines();
        self.apply_cache_size();
        self.dedup.set_index_bytes(settings.dedup_index_size);
        self.apply_cache_budget();
    }

    /// Gives every device its deadline: durable writes wait for each command of a log device, and
    /// for none of a data device while there is memory.
    pub(crate) fn apply_deadlines(&self) {
        let Settings { device_timeout: data, log_timeout: log, .. } = self.settings.get();
        let config = self.config.borrow();
        let sides: Vec<u32> =
            config.logs.iter().flat_map(|ring| &ring.sides).map(|side| side.device).collect();
        for (id, open) in self.devices.borrow().iter() {
            open.deadline.set_span(if sides.contains(&id.0) { log } else { data });
        }
    }

    /// Copies the array's state of its members into the configuration.
    pub(crate) fn refresh_member_configs(&self) {
        let status = self.store.array.status();
        // Everything up to the last root is on the devices that were in use then.
        let suspect_from = self.sync.commit.get().next().0;
        let mut config = self.config.borrow_mut();
        let members = config.groups.iter_mut().flat_map(|g| &mut g.members);
        for member in members {
            let mut at = Some(member);
            while let Some(member) = at {
                if let Some(now) = status.iter().find(|s| s.id == DeviceId(member.device)) {
                    refresh(member, now, suspect_from);
                }
                at = member.replacement.as_deref_mut();
            }
        }
    }
}

fn refresh(member: &mut MemberConfig, now: &forebay_array::MemberStatus, suspect_from: u64) {
    member.state = match now.state {
        MemberState::Online | MemberState::Degraded | MemberState::Unavail => MemberUse::Online,
        MemberState::Offline => MemberUse::Offline,
        MemberState::Faulted | MemberState::Removed => MemberUse::Faulted,
    };
    member.stale = now.durable_stale.iter().map(|r| (r.start, r.end)).collect();
    let writable = now.state == MemberState::Online;
    member.stale_since = match (writable, member.stale_since) {
        (true, _) => None,
        (false, Some(since)) => Some(since),
        (false, None) => Some(suspect_from),
    };
}

#[cfg(test)]
mod tests;
