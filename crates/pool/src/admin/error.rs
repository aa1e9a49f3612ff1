//! Errors of commands on pools, devices, properties and volumes.

use std::fmt;

use forebay_array::ArrayError;
use forebay_device::DeviceError;
use forebay_intent_log::LogError;
use forebay_units::{BLOCK_BYTES, format_bytes};

use crate::commit::error::{CommitError, SuspendReason};
use crate::error::widens;
use crate::labels::LabelError;
use crate::layout::LayoutError;

/// Why a command on a pool or its devices failed. Devices are named by their path, or as the
/// operator named them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminError {
    /// The pool is suspended.
    Suspended {
        /// The pool.
        pool: String,
        /// Why.
        reason: SuspendReason,
    },
    /// The pool is being exported, destroyed or ended.
    Closing {
        /// The pool.
        pool: String,
    },
    /// A device cannot join the pool.
    Candidate(CandidateError),
    /// No device is named that a pool could be made of, or that could be added.
    NoDevice,
    /// A device is named twice.
    NamedTwice {
        /// The device.
        device: String,
    },
    /// Groups of one pool would survive different numbers of failed devices.
    UnlikeGroups {
        /// Fewest failed devices that a group survives.
        least: usize,
        /// Most failed devices that a group survives.
        most: usize,
    },
    /// The pool would have too many log devices.
    TooManyLogs {
        /// Log devices that a pool can have; a mirror is one.
        limit: u32,
    },
    /// The device has no label of a pool.
    NoLabel {
        /// The device.
        device: String,
    },
    /// The log's place on a device could not be written through.
    LogPlace(DeviceError),
    /// The operator interrupted the command before anything changed.
    Interrupted,
    /// The pool has no such device.
    UnknownDevice {
        /// The pool.
        pool: String,
        /// The name.
        name: String,
    },
    /// The name fits several devices of the pool.
    AmbiguousDevice {
        /// The pool.
        pool: String,
        /// The name.
        name: String,
    },
    /// The name is that of a group.
    NamesGroup {
        /// The pool.
        pool: String,
        /// The name.
        name: String,
    },
    /// Only log devices can be removed.
    DataDevice {
        /// The device.
        device: String,
    },
    /// The device is one side of a log mirror.
    SideOfLog {
        /// The pool.
        pool: String,
        /// The device.
        device: String,
        /// The number in the mirror's name.
        mirror: usize,
    },
    /// The device is the only side of its log device.
    OnlySide {
        /// The device.
        device: String,
    },
    /// The device is the only usable side of its log device.
    OnlyUsableSide {
        /// The device.
        device: String,
    },
    /// The log device was removed while the command ran.
    LogRemoved,
    /// A log device cannot be replaced by itself.
    SameLogDevice {
        /// The device.
        device: String,
    },
    /// A device in use cannot be replaced by itself.
    InUseHere {
        /// The device.
        device: String,
    },
    /// A device was taken out to be replaced by itself, and could not be taken in.
    NotTakenIn {
        /// The pool.
        pool: String,
        /// The device.
        device: String,
        /// Why.
        error: Box<AdminError>,
    },
    /// The device is being replaced.
    BeingReplaced {
        /// The device.
        device: String,
    },
    /// Nothing can be attached to a device of this layout.
    NotMirror {
        /// The device.
        device: String,
        /// Its group's layout.
        layout: String,
    },
    /// Commands that were given up may still be executed by the device.
    LateCommands {
        /// The device.
        device: String,
        /// How many.
        commands: u64,
    },
    /// The device does not carry the pool's label any more.
    LabelGone {
        /// The device.
        device: String,
    },
    /// The device was written apart from the pool.
    Diverged {
        /// The pool.
        pool: String,
        /// The device.
        device: String,
    },
    /// The array refused a change of one of its devices.
    Member {
        /// The device.
        device: String,
        /// Why.
        error: ArrayError,
    },
    /// The configuration would leave too little room in the label.
    ConfigTooLarge(ConfigTooLarge),
    /// With this dirty limit there would be less space than volumes have.
    DirtyLimit {
        /// Bytes that volumes could have.
        usable_bytes: u64,
        /// Bytes that volumes have or own.
        taken_bytes: u64,
    },
    /// A property cannot be set.
    Property(PropertyError),
    /// A name cannot be given.
    Name(NameError),
    /// The devices do not make up groups.
    Layout(LayoutError),
    /// A device failed.
    Device(DeviceError),
    /// A label could not be written.
    Label(LabelError),
    /// The log failed.
    Log(LogError),
    /// The change could not be committed.
    Commit(CommitError),
}

/// A configuration that would leave too little room in the label for what grows by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigTooLarge {
    /// The pool.
    pub pool: String,
    /// The configuration's length, in bytes.
    pub size_bytes: u64,
}

/// Why a device cannot join a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CandidateError {
    /// A pool or another program has it open.
    InUse {
        /// The device.
        device: String,
    },
    /// It is too small.
    TooSmall {
        /// The device.
        device: String,
        /// Its size.
        size_bytes: u64,
        /// The size needed.
        needed_bytes: u64,
    },
    /// It belongs to a pool.
    OwnedByPool {
        /// The device.
        device: String,
        /// The pool.
        pool: String,
    },
    /// Something else is on it, such as a file system.
    NotEmpty {
        /// The device.
        device: String,
        /// What.
        content: &'static str,
    },
    /// It cannot be opened.
    Open(DeviceError),
    /// Its label cannot be written.
    NotWritable(DeviceError),
}

/// Why a property cannot be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyError {
    /// There is no such property.
    Unknown {
        /// The name.
        property: String,
        /// The properties that there are.
        known: Vec<&'static str>,
    },
    /// The property cannot have this value.
    BadValue {
        /// The property.
        property: &'static str,
        /// The value.
        value: String,
        /// What it may be, in words.
        expected: &'static str,
    },
}

/// Why a pool or volume cannot have a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameError {
    /// It is empty, too long, or has characters that are not allowed there.
    BadPool {
        /// The name.
        name: String,
    },
    /// The same, of a volume.
    BadVolume {
        /// The name.
        name: String,
    },
    /// It is a word of the command line.
    Reserved {
        /// The name.
        name: String,
    },
}

/// Why a command on a volume failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeError {
    /// The pool has no such volume.
    NotFound {
        /// The pool.
        pool: String,
        /// The volume.
        volume: String,
    },
    /// The pool has a volume of this name.
    Exists {
        /// The pool.
        pool: String,
        /// The volume.
        volume: String,
    },
    /// A volume cannot have this size.
    BadSize {
        /// The size.
        size_bytes: u64,
        /// The largest possible one.
        limit_bytes: u64,
    },
    /// The pool has too little space for the volume, or for it to grow.
    NoSpace {
        /// The pool.
        pool: String,
        /// Bytes that are free.
        free_bytes: u64,
        /// Bytes that are needed.
        needed_bytes: u64,
        /// Whether the volume exists, and was to grow.
        is_growing: bool,
    },
    /// The volume would become smaller, and lose what lies past its new end.
    WouldShrink {
        /// The volume.
        volume: String,
        /// Its size.
        size_bytes: u64,
        /// The size asked for.
        wanted_bytes: u64,
    },
    /// The configuration would leave too little room in the label.
    ConfigTooLarge(ConfigTooLarge),
    /// A property cannot be set.
    Property(PropertyError),
    /// A name cannot be given.
    Name(NameError),
    /// The change could not be committed.
    Commit(CommitError),
}

/// Why a pool was not exported, destroyed or ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseError {
    /// It is being closed already.
    Closing {
        /// The pool.
        pool: String,
    },
    /// It stays imported: the only good map is in memory, and there is no room to write it.
    JournalDamaged {
        /// The pool.
        pool: String,
    },
    /// It was let go without a last root, for it was suspended or became so.
    Suspended {
        /// The pool.
        pool: String,
        /// Why.
        reason: SuspendReason,
    },
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Suspended { pool, reason } => write!(f, "pool '{pool}' is suspended: {reason}"),
            Self::Closing { pool } => write!(f, "pool '{pool}' is being exported"),
            Self::Candidate(error) => write!(f, "{error}"),
            Self::NoDevice => write!(f, "no device is named"),
            Self::NamedTwice { device } => write!(f, "{device} is named twice"),
            Self::UnlikeGroups { least, most } => {
                write!(f, "one group would survive {least} failed devices and another {most}")
            }
            Self::TooManyLogs { limit } => write!(
                f,
                "a pool can have {limit} log devices (a mirror is one); these would be more"
            ),
            Self::NoLabel { device } => {
                write!(f, "{device} has no label of a pool; nothing was done")
            }
            Self::LogPlace(error) => write!(f, "{error}; the log's place must be had in whole"),
            Self::Interrupted => write!(
                f,
                "interrupted: no pool has changed, and the place that was taken for the log was \
                 given back"
            ),
            Self::UnknownDevice { pool, name } => write!(f, "pool '{pool}' has no device '{name}'"),
            Self::AmbiguousDevice { pool, name } => {
                write!(f, "'{name}' names more than one device of pool '{pool}'")
            }
            Self::NamesGroup { name, .. } => write!(f, "'{name}' is a group"),
            Self::DataDevice { device } => {
                write!(f, "{device} is a data device: only log devices can be removed")
            }
            Self::SideOfLog { device, mirror, .. } => {
                write!(f, "{device} is one side of mirror-{mirror}")
            }
            Self::OnlySide { device } => write!(f, "{device} is the only side of its log device"),
            Self::OnlyUsableSide { device } => {
                write!(f, "{device} is the only good side of its log device")
            }
            Self::LogRemoved => write!(f, "the log device was removed meanwhile"),
            Self::SameLogDevice { device } => {
                write!(f, "log device {device} cannot take its own place")
            }
            Self::InUseHere { device } => write!(f, "{device} is in use"),
            Self::NotTakenIn { error, .. } => write!(f, "{error}; it is offline now"),
            Self::BeingReplaced { device } => write!(f, "{device} is being replaced"),
            Self::NotMirror { device, layout } => not_mirror(f, device, layout),
            Self::LateCommands { device, commands } => late_commands(f, device, *commands),
            Self::LabelGone { device } => {
                write!(f, "{device} no longer carries this pool's label")
            }
            Self::Diverged { device, .. } => write!(
                f,
                "{device} was written apart from the pool, and what it holds is of another history"
            ),
            Self::Member { device, error } => member(f, device, error),
            Self::ConfigTooLarge(error) => write!(f, "{error}"),
            Self::DirtyLimit { usable_bytes, taken_bytes } => {
                dirty_limit(f, *usable_bytes, *taken_bytes)
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

fn not_mirror(f: &mut fmt::Formatter<'_>, device: &str, layout: &str) -> fmt::Result {
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

fn dirty_limit(f: &mut fmt::Formatter<'_>, usable_bytes: u64, taken_bytes: u64) -> fmt::Result {
    let (usable, taken) = (format_bytes(usable_bytes), format_bytes(taken_bytes));
    write!(
        f,
        "with this dirty_limit volumes could have {usable}, and they have or own {taken} by now"
    )
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

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { pool, volume } => write!(f, "pool '{pool}' has no volume '{volume}'"),
            Self::Exists { pool, volume } => write!(f, "volume '{pool}/{volume}' exists"),
            Self::BadSize { size_bytes, limit_bytes } => write!(
                f,
                "{size_bytes} bytes is no size for a volume: it is a multiple of {BLOCK_BYTES} \
                 bytes, at most {}",
                format_bytes(*limit_bytes)
            ),
            Self::NoSpace { pool, free_bytes, needed_bytes, is_growing } => write!(
                f,
                "pool '{pool}' has {} free, {} needs {}",
                format_bytes(*free_bytes),
                if *is_growing { "growing the volume" } else { "the volume" },
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

widens!(AdminError: Candidate(CandidateError), Property(PropertyError), Name(NameError),
    Layout(LayoutError), Device(DeviceError), Label(LabelError), Log(LogError),
    Commit(CommitError), ConfigTooLarge(ConfigTooLarge));
widens!(VolumeError: Property(PropertyError), Name(NameError), Commit(CommitError),
    ConfigTooLarge(ConfigTooLarge));
widens!(CandidateError:);
widens!(PropertyError:);
widens!(NameError:);
widens!(CloseError:);
