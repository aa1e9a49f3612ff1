//! Errors of commands on pools, devices, properties and volumes.

mod display;

use forebay_array::ArrayError;
use forebay_device::{DeviceError, ReservationKey};
use forebay_intent_log::LogError;
use forebay_units::Layout;

use crate::commit::error::{CommitError, SuspendReason};
use crate::labels::LabelError;
use crate::layout::LayoutError;
use crate::widens::widens;

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
    /// A device cannot be a spare: it holds something, and force does not change that.
    SpareNotEmpty(CandidateError),
    /// The device is a spare or a cache device, and the command is for others.
    NotMember {
        /// The pool.
        pool: String,
        /// The device.
        device: String,
        /// It is a spare.
        is_spare: bool,
    },
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
    /// The pool would have groups of different kinds.
    UnlikeKinds {
        /// The kinds, such as `mirror`.
        kinds: Vec<Layout>,
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
    /// The name is of a group of data devices, which cannot be removed.
    DataGroup {
        /// The group.
        group: String,
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
    /// A device in use cannot be replaced by itself.
    InUseHere {
        /// The device.
        device: String,
    },
    /// A device was to be brought online from another path, and is in use.
    CopyOfOneInUse {
        /// The pool.
        pool: String,
        /// The device.
        device: String,
        /// Where the copy is.
        path: String,
    },
    /// A log device failed again as the log was started on it.
    SideFailed {
        /// The pool.
        pool: String,
        /// The device.
        device: String,
    },
    /// A device was to be replaced by itself, which is at another path now.
    IsItself {
        /// The pool.
        pool: String,
        /// The device.
        device: String,
        /// Where it is.
        path: String,
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
        layout: Layout,
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
    /// After a change there would be less space than volumes have.
    TooLittleUsable {
        /// The change.
        change: UsableChange,
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
    /// Another machine has reserved it.
    Reserved {
        /// The device.
        device: String,
        /// The key of the reservation; `None` if another machine was faster just now.
        holder: Option<ReservationKey>,
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
    /// The same, of a snapshot or of a tag.
    BadSnapshot {
        /// The name.
        name: String,
    },
    /// It is a word of the command line.
    Reserved {
        /// The name.
        name: String,
    },
}

/// A change of a pool after which volumes may have less space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsableChange {
    /// A larger dirty limit.
    DirtyLimit,
    /// A device is detached, without which a group has no redundancy.
    Without {
        /// The device.
        device: String,
    },
    /// Groups without redundancy are added to others.
    Groups,
}

/// What a command on a volume needs space for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceFor {
    /// A new volume.
    Volume,
    /// A volume that was to grow.
    Growth,
    /// What a volume was to have set aside.
    Reservation,
    /// What a snapshot holds beside the reservation of its volume.
    Snapshot,
    /// The way back to a snapshot.
    Rollback,
    /// The exchange of a clone and its origin.
    Promotion,
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
    /// The pool has no such snapshot.
    NoSnapshot {
        /// The pool.
        pool: String,
        /// `VOL@SNAP`.
        name: String,
    },
    /// There is a snapshot of this name.
    SnapshotExists {
        /// `POOL/VOL@SNAP`.
        name: String,
    },
    /// The clone has snapshots of the same names as some that it would get.
    SnapshotsExist {
        /// `POOL/VOL`.
        name: String,
        /// The names without the volume's.
        snapshots: Vec<String>,
    },
    /// Only a clone can be promoted.
    NotAClone {
        /// `POOL/VOL`.
        name: String,
    },
    /// The volume has snapshots, which would go with it.
    HasSnapshots {
        /// `POOL/VOL`.
        name: String,
        /// How many.
        count: usize,
    },
    /// Clones of the snapshot need it.
    HasClones {
        /// `POOL/VOL@SNAP`.
        name: String,
        /// The clones.
        clones: Vec<String>,
    },
    /// The snapshot is held.
    IsHeld {
        /// `POOL/VOL@SNAP`.
        name: String,
        /// The tags.
        tags: Vec<String>,
    },
    /// The snapshot has this tag already, or has not got it.
    Tag {
        /// `POOL/VOL@SNAP`.
        name: String,
        /// The tag.
        tag: String,
        /// Whether the snapshot has it.
        is_there: bool,
    },
    /// The snapshot has as many tags as there can be.
    TooManyHolds {
        /// `POOL/VOL@SNAP`.
        name: String,
    },
    /// The volume has newer snapshots.
    NotNewest {
        /// `VOL@SNAP`.
        name: String,
        /// The newer ones, `VOL@SNAP`.
        newer: Vec<String>,
    },
    /// A volume that has space set aside is not compressed: an overwrite of a part of a packed
    /// block takes new space.
    CompressionNeedsSparse {
        /// The volume.
        volume: String,
    },
    /// A volume that has space set aside is not de-duplicated: an overwrite of a block that others
    /// have too takes new space.
    DedupNeedsSparse {
        /// The volume.
        volume: String,
        /// It has de-duplicated or compressed blocks, and was to get space set aside.
        has_refs: bool,
    },
    /// The pool's format is older than what was asked for.
    OldFormat {
        /// The pool.
        pool: String,
        /// Its version.
        version: u32,
        /// The version that has it.
        needed: u32,
        /// What was asked for.
        what: &'static str,
    },
    /// The volume is being received, or was and is not whole.
    Receiving {
        /// `POOL/VOL`.
        name: String,
        /// A stream arrives; otherwise it was interrupted.
        is_underway: bool,
    },
    /// The volume has no part of an interrupted stream.
    NotReceiving {
        /// `POOL/VOL`.
        name: String,
    },
    /// A volume cannot have this size.
    BadSize {
        /// The size.
        size_bytes: u64,
        /// The largest possible one.
        limit_bytes: u64,
    },
    /// The pool has too little space for what the command needs it for.
    NoSpace {
        /// The pool.
        pool: String,
        /// Bytes that are free.
        free_bytes: u64,
        /// Bytes that are needed.
        needed_bytes: u64,
        /// What needs them.
        wanted_for: SpaceFor,
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
    /// The change could not be committed. If the pool was suspended meanwhile, the change may be
    /// there or not when it goes on.
    Commit(CommitError),
    /// The pool is suspended; nothing was changed.
    Suspended {
        /// The pool.
        pool: String,
        /// Why.
        reason: SuspendReason,
    },
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

widens!(AdminError: Candidate(CandidateError), Property(PropertyError), Name(NameError),
    Layout(LayoutError), Device(DeviceError), Label(LabelError), Log(LogError),
    Commit(CommitError), ConfigTooLarge(ConfigTooLarge));
widens!(VolumeError: Property(PropertyError), Name(NameError), Commit(CommitError),
    ConfigTooLarge(ConfigTooLarge));
widens!(CandidateError:);
widens!(PropertyError:);
widens!(NameError:);
widens!(CloseError:);
