//! The lines that an operator sees: what is wrong, and with which device.

use std::fmt;

use forebay_array::ArrayError;
use forebay_units::{BLOCK_BYTES, Layout, format_bytes};

use super::{
    AdminError, CandidateError, CloseError, ConfigTooLarge, NameError, PropertyError, SpaceFor,
    UsableChange, VolumeError,
};

const INTERRUPTED: &str = "interrupted: no pool has changed, and the place that was taken for the \
                           log was given back";

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Suspended { pool, reason } => write!(f, "pool '{pool}' is suspended: {reason}"),
            Self::Closing { pool } => write!(f, "pool '{pool}' is being exported"),
            Self::Candidate(error) | Self::SpareNotEmpty(error) => write!(f, "{error}"),
            Self::NotMember { pool, device, is_spare } => {
                write!(f, "{device} is {} of '{pool}', and no member", kind(*is_spare))
            }
            Self::NoDevice => write!(f, "no device is named"),
            Self::NamedTwice { device } => write!(f, "{device} is named twice"),
            Self::UnlikeKinds { kinds } => {
                let kinds: Vec<&str> = kinds.iter().map(|layout| layout.as_str()).collect();
                write!(f, "the pool would have groups of different kinds ({})", kinds.join(", "))
            }
            Self::UnlikeGroups { least, most } => {
                write!(f, "one group would survive {least} failed devices and another {most}")
            }
            Self::TooManyLogs { limit } => {
                write!(f, "a pool can have {limit} log devices (a mirror counts as one)")
            }
            Self::NoLabel { device } => {
                write!(f, "{device} has no label of a pool; nothing was done")
            }
            Self::LogPlace(error) => write!(f, "{error}; the log's place must be had in whole"),
            Self::Interrupted => f.write_str(INTERRUPTED),
            Self::UnknownDevice { pool, name } => {
                write!(f, "pool '{pool}' has no device or group '{name}'")
            }
            Self::AmbiguousDevice { pool, name } => {
                write!(f, "'{name}' names more than one device of pool '{pool}'")
            }
            Self::NamesGroup { name, .. } => write!(f, "'{name}' is a group"),
            Self::DataDevice { device } => {
                write!(f, "{device} is a data device: only log devices can be removed")
            }
            Self::DataGroup { group } => {
                write!(f, "{group} is a group of data devices: only log devices can be removed")
            }
            Self::SideOfLog { device, mirror, .. } => {
                write!(f, "{device} is one side of mirror-{mirror}")
            }
            Self::OnlySide { device } => write!(f, "{device} is the only side of its log device"),
            Self::OnlyUsableSide { device } => {
                write!(f, "{device} is the only good side of its log device")
            }
            Self::LogRemoved => write!(f, "the log device was removed meanwhile"),
            Self::InUseHere { device } => write!(f, "{device} is in use"),
            Self::CopyOfOneInUse { device, path, .. } => copy_of_one_in_use(f, device, path),
            Self::SideFailed { device, .. } => side_failed(f, device),
            Self::IsItself { device, path, .. } => is_itself(f, device, path),
            Self::NotTakenIn { error, .. } => write!(f, "{error}; it is offline now"),
            Self::BeingReplaced { device } => write!(f, "{device} is being replaced"),
            Self::NotMirror { device, layout } => not_mirror(f, device, layout),
            Self::LateCommands { device, commands } => late_commands(f, device, *commands),
            Self::LabelGone { device } => write!(f, "{device} has lost this pool's label"),
            Self::Diverged { device, .. } => diverged(f, device),
            Self::Member { device, error } => member(f, device, error),
            Self::ConfigTooLarge(error) => write!(f, "{error}"),
            Self::TooLittleUsable { change, usable_bytes, taken_bytes } => {
                too_little_usable(f, change, *usable_bytes, *taken_bytes)
            }
            Self::Property(error) => write!(f, "{error}"),
            Self::Name(error) => write!(f, "{error}"),
            Self::Layout(error) => write!(f, "{error}"),
            Self::Device(error) => write!(f, "{error}"),
            Self::Label(error) => write!(f, "{error}"),
            Self::Log(error) => write!(f, "{error}"),
            Self::Commit(error) => write!(f, "{error}"),
        }
    }
}

fn diverged(f: &mut fmt::Formatter<'_>, device: &str) -> fmt::Result {
    let history = "and what it holds is of another history";
    write!(f, "{device} was written apart from the pool, {history}")
}

fn copy_of_one_in_use(f: &mut fmt::Formatter<'_>, device: &str, path: &str) -> fmt::Result {
    write!(f, "{path} has the label of {device}, which is in use")
}

fn side_failed(f: &mut fmt::Formatter<'_>, device: &str) -> fmt::Result {
    write!(f, "the log could not be started on {device}, which failed again")
}

fn is_itself(f: &mut fmt::Formatter<'_>, device: &str, path: &str) -> fmt::Result {
    write!(f, "{path} is {device} itself, at another path")
}

fn not_mirror(f: &mut fmt::Formatter<'_>, device: &str, layout: &Layout) -> fmt::Result {
    write!(
        f,
        "{device} is part of a {layout}: only mirrors, single devices and log devices can be \
         attached to"
    )
}

fn late_commands(f: &mut fmt::Formatter<'_>, device: &str, commands: u64) -> fmt::Result {
    write!(
        f,
        "{device} still has {commands} commands under way that were given up: they could \
         overwrite what is newer"
    )
}

fn too_little_usable(
    f: &mut fmt::Formatter<'_>,
    change: &UsableChange,
    usable_bytes: u64,
    taken_bytes: u64,
) -> fmt::Result {
    match change {
        UsableChange::DirtyLimit => f.write_str("with this dirty_limit")?,
        UsableChange::Without { device } => write!(f, "without {device}")?,
        UsableChange::Groups => f.write_str("with these devices")?,
    }
    let (usable, taken) = (format_bytes(usable_bytes), format_bytes(taken_bytes));
    write!(f, " volumes could have {usable}, and they have or own {taken} by now")
}

fn kind(is_spare: bool) -> &'static str {
    if is_spare { "a spare" } else { "a cache device" }
}

/// An error of the array, with the device's path in place of its number.
fn member(f: &mut fmt::Formatter<'_>, device: &str, error: &ArrayError) -> fmt::Result {
    match error {
        ArrayError::WouldLose { segment, .. } => write!(
            f,
            "{device} is needed: without it segment {segment} (and perhaps others) could not be \
             read"
        ),
        ArrayError::TooSmall { size_bytes, needed_bytes, .. } => {
            write!(f, "{device} has {size_bytes} bytes, {needed_bytes} are needed")
        }
        ArrayError::Full { .. } => {
            write!(f, "{device} cannot be added: the group is full")
        }
        ArrayError::NotMirror { layout: Layout::Mirror, .. } => {
            write!(f, "{device} is the only device of its group")
        }
        ArrayError::NotMirror { layout, .. } => {
            write!(f, "{device} is part of a {layout}: this needs a mirror or a single device")
        }
        ArrayError::NotOpen { .. } => write!(f, "{device} is not open"),
        ArrayError::DeviceInUse { .. } => write!(f, "{device} is in the pool already"),
        other => write!(f, "{device}: {other}"),
    }
}

impl fmt::Display for ConfigTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the label of a device has no room for more: the configuration of pool '{}' takes {} \
             by now",
            self.pool,
            format_bytes(self.size_bytes)
        )
    }
}

impl fmt::Display for CandidateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { device } => {
                write!(f, "{device} is in use (by a pool that is imported, or another program)")
            }
            Self::TooSmall { device, size_bytes, needed_bytes } => write!(
                f,
                "{device} has {}, but a device needs {} at least",
                format_bytes(*size_bytes),
                format_bytes(*needed_bytes)
            ),
            Self::OwnedByPool { device, pool } => write!(f, "{device} belongs to pool '{pool}'"),
            Self::NotEmpty { device, content } => write!(f, "{device} holds {content}"),
            Self::Reserved { device, holder: Some(key) } => {
                write!(f, "another machine has reserved {device}, under key {key}")
            }
            Self::Reserved { device, holder: None } => {
                write!(f, "another machine has just reserved {device}")
            }
            Self::Open(error) | Self::NotWritable(error) => write!(f, "{error}"),
        }
    }
}

impl fmt::Display for PropertyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { property, known } => write!(
                f,
                "there is no property '{property}'; the properties are {}",
                known.join(", ")
            ),
            Self::BadValue { property, value, expected } => write!(
                f,
                "'{}' is no value for '{property}': it is {expected}",
                value.escape_debug()
            ),
        }
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, what, first) = match self {
            Self::BadPool { name } => (name, "pool", "a letter"),
            Self::BadVolume { name } => (name, "volume", "a letter or digit"),
            Self::BadSnapshot { name } => {
                return write!(
                    f,
                    "'{}' is no name for a snapshot or tag: that of a snapshot is VOL@SNAP, and \
                     each part has letters, digits, '_', '.', ':' and '-', at most 200",
                    name.escape_debug()
                );
            }
            Self::Reserved { name } => return write!(f, "'{name}' is a reserved word"),
        };
        write!(
            f,
            "'{}' is no name for a {what}: it has letters, digits, '_', '.', ':' and '-', begins \
             with {first}, and has at most 200",
            name.escape_debug()
        )
    }
}

fn needs_sparse(f: &mut fmt::Formatter<'_>, volume: &str, what: &str) -> fmt::Result {
    write!(f, "volume '{volume}' has space set aside, and only sparse volumes are {what}")
}

fn dedup_needs(f: &mut fmt::Formatter<'_>, volume: &str, has_refs: bool) -> fmt::Result {
    if !has_refs {
        return needs_sparse(f, volume, "de-duplicated");
    }
    write!(
        f,
        "volume '{volume}' is de-duplicated or compressed, or has blocks that are, so no space \
         can be set aside for it"
    )
}

impl VolumeError {
    /// Why a clone is not promoted.
    fn fmt_promotion(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SnapshotsExist { name, snapshots } => write!(
                f,
                "clone '{name}' has snapshots with names of those that it would get: {}",
                snapshots.join(", ")
            ),
            Self::NotAClone { name } => write!(f, "volume '{name}' is not a clone"),
            other => unreachable!("{other:?} is about something else"),
        }
    }
}

impl fmt::Display for SpaceFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Volume => "the volume",
            Self::Growth => "growing the volume",
            Self::Reservation => "the reservation",
            Self::Snapshot => "the snapshot",
            Self::Rollback => "going back to the snapshot",
            Self::Promotion => "the promotion",
        })
    }
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { pool, volume } => write!(f, "pool '{pool}' has no volume '{volume}'"),
            Self::Exists { pool, volume } => write!(f, "volume '{pool}/{volume}' exists"),
            Self::NoSnapshot { pool, name } => write!(f, "pool '{pool}' has no snapshot '{name}'"),
            Self::SnapshotExists { name } => write!(f, "snapshot '{name}' exists"),
            Self::SnapshotsExist { .. } | Self::NotAClone { .. } => self.fmt_promotion(f),
            Self::HasSnapshots { name, count } => {
                let s = if *count == 1 { "" } else { "s" };
                write!(f, "volume '{name}' has {count} snapshot{s}")
            }
            Self::HasClones { name, clones } => {
                write!(f, "snapshot '{name}' has clones: {}", clones.join(", "))
            }
            Self::IsHeld { name, tags } => {
                write!(f, "snapshot '{name}' is held: {}", tags.join(", "))
            }
            Self::Tag { name, tag, is_there: true } => {
                write!(f, "snapshot '{name}' has the tag '{tag}' already")
            }
            Self::Tag { name, tag, is_there: false } => {
                write!(f, "snapshot '{name}' has no tag '{tag}'")
            }
            Self::TooManyHolds { name } => {
                write!(f, "snapshot '{name}' has as many tags as a snapshot can have")
            }
            Self::NotNewest { name, newer } => {
                let newer = newer.join(", ");
                write!(f, "'{name}' is not the newest snapshot of its volume; newer: {newer}")
            }
            Self::CompressionNeedsSparse { volume } => needs_sparse(f, volume, "compressed"),
            Self::DedupNeedsSparse { volume, has_refs } => dedup_needs(f, volume, *has_refs),
            Self::OldFormat { pool, version, needed, what } => {
                write!(f, "pool '{pool}' has format version {version}, and {what} needs {needed}")
            }
            Self::Receiving { name, is_underway: true } => {
                write!(f, "volume '{name}' is being received")
            }
            Self::Receiving { name, is_underway: false } => {
                write!(f, "volume '{name}' is received in part: its stream was interrupted")
            }
            Self::NotReceiving { name } => {
                write!(f, "volume '{name}' has no part of an interrupted stream")
            }
            Self::BadSize { size_bytes, limit_bytes } => write!(
                f,
                "{size_bytes} bytes is no size for a volume: it is a multiple of {BLOCK_BYTES} \
                 bytes, at most {}",
                format_bytes(*limit_bytes)
            ),
            Self::NoSpace { pool, free_bytes, needed_bytes, wanted_for } => write!(
                f,
                "pool '{pool}' has {} free, {wanted_for} needs {}",
                format_bytes(*free_bytes),
                format_bytes(*needed_bytes)
            ),
            Self::WouldShrink { volume, size_bytes, wanted_bytes } => write!(
                f,
                "volume '{volume}' has {}; making it smaller loses what lies past {}",
                format_bytes(*size_bytes),
                format_bytes(*wanted_bytes)
            ),
            Self::ConfigTooLarge(error) => write!(f, "{error}"),
            Self::Property(error) => write!(f, "{error}"),
            Self::Name(error) => write!(f, "{error}"),
            Self::Commit(error) => write!(f, "{error}"),
            Self::Suspended { pool, reason } => write!(f, "pool '{pool}' is suspended: {reason}"),
        }
    }
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closing { pool } => write!(f, "pool '{pool}' is being exported"),
            Self::JournalDamaged { pool } => write!(
                f,
                "pool '{pool}' stays imported: its map journal is damaged, there is no room to \
                 write it anew, and the only good map is in memory"
            ),
            Self::Suspended { pool, reason } => write!(
                f,
                "pool '{pool}' was suspended and is left as it is: {reason}; the next import goes \
                 on from its last root and its log"
            ),
        }
    }
}
