//! Errors of an import: why a pool was not opened, with the devices concerned.

use std::fmt;

use forebay_device::{DeviceError, ErrorKind, ReservationKey};
use forebay_format::FormatError;
use forebay_intent_log::LogError;
use forebay_segment::SegmentError;
use forebay_units::{
    BlockAddr, CommitId, FrameSeq, Layout, Lba, SegmentId, TxgId, VolumeId, format_bytes,
};

use crate::commit::error::CommitError;
use crate::import::takeover::other_owner;
use crate::layout::LayoutError;
use crate::widens::widens;

mod words;

/// A pool that was not imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportError {
    /// The pool's name, or what was asked for when no label of it was found.
    pub pool: String,
    /// Why.
    pub kind: ImportErrorKind,
}

impl ImportError {
    /// Whether another process of this machine has a device open that was looked at.
    #[must_use]
    pub fn is_held_here(&self) -> bool {
        match &self.kind {
            ImportErrorKind::HeldHere { .. } => true,
            ImportErrorKind::NotFound { unreadable, .. } => {
                unreadable.iter().any(|error| error.kind == ErrorKind::Busy)
            }
            _ => false,
        }
    }
}

/// Why a pool was not imported. Lists of devices are paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportErrorKind {
    /// No device has a readable label of the pool.
    NotFound {
        /// Devices that could not be opened or read.
        unreadable: Vec<DeviceError>,
        /// All devices that were read, or tried.
        searched: Vec<String>,
    },
    /// The labels were read once, and could not be read again before the import wrote anything.
    LabelsLost {
        /// The devices that had them.
        devices: Vec<String>,
    },
    /// Several pools have this name.
    Ambiguous,
    /// The pool was destroyed.
    Destroyed,
    /// A device has superblocks of a format that this program does not read.
    FormatVersion {
        /// The device.
        device: String,
        /// The version that this program reads.
        expected: u32,
        /// The version on the device.
        found: u32,
    },
    /// No device has a readable superblock, or not as many as the import was to go back by.
    NoSuperblock(Lacking),
    /// No device has the configuration that the root names.
    NoConfiguration {
        /// The root.
        root: CommitId,
        /// Devices that have the root.
        holders: Vec<String>,
        /// The configuration's generation.
        generation: u64,
        /// Devices that may have it.
        lacking: Lacking,
        /// Whether an older root has its configuration.
        has_older: bool,
    },
    /// Changes are known that are newer than the newest root on the devices.
    RootNotNewest {
        /// Who knows of them.
        witness: Witness,
        /// Devices that may have the newer roots, and are missing.
        missing: Vec<String>,
        /// The devices that are here. Without a missing one, they have lost the newer roots.
        present: Vec<String>,
    },
    /// Half of the data devices or more are missing, and may have newer roots.
    HalfMissing {
        /// Devices that are missing.
        missing: Vec<String>,
    },
    /// Devices were written apart from each other: each side has writes that the other lacks.
    Diverged {
        /// The device with the highest root.
        newest: String,
        /// That root.
        newest_root: CommitId,
        /// Devices of the other side.
        others: Vec<String>,
        /// The first of the other side's roots.
        others_root: CommitId,
    },
    /// The device whose side of a divergence was to be kept has no readable root of the pool.
    NotKept {
        /// The device.
        device: String,
    },
    /// A group has fewer usable devices than it needs.
    TooFewDevices {
        /// The group's layout.
        layout: Layout,
        /// Devices of the group.
        devices: usize,
        /// Devices that it needs.
        needed: usize,
        /// Devices that can be used.
        usable: usize,
        /// Devices that are missing.
        missing: Vec<String>,
        /// Devices that are here and out of use.
        out_of_use: Vec<String>,
    },
    /// Devices are here that were to be rebuilt from others, and those are missing.
    SourcesMissing {
        /// A segment that no device here holds.
        segment: SegmentId,
        /// Data devices that are missing.
        missing: Vec<String>,
        /// Data devices that are behind the others, and not rebuilt yet.
        behind: Vec<String>,
    },
    /// A log device is missing.
    LogMissing {
        /// Its sides.
        missing: Vec<String>,
        /// Acknowledged writes after this group are on it alone; `None` when the pool was exported.
        lost_after: Option<TxgId>,
        /// Why they cannot be opened, those that are there.
        unopened: Vec<DeviceError>,
        /// Those that are there, and were written apart from the half that was to be kept.
        apart: Vec<String>,
    },
    /// Acknowledged writes are not in the log any more.
    LogLoss(Box<LogLoss>),
    /// The log, or what the root says of it, cannot be used.
    Log(LogError),
    /// The map cannot be read.
    Map {
        /// Why.
        error: Box<MapLoadError>,
        /// Data devices that are missing.
        missing: Vec<String>,
        /// Data devices that are behind the others, and not rebuilt yet.
        behind: Vec<String>,
    },
    /// The devices do not make up groups.
    Layout(LayoutError),
    /// Another owner has written to the pool since it was suspended here.
    OwnedMeanwhile,
    /// Another process of this machine has a member in use open, and perhaps the pool imported.
    HeldHere {
        /// The member.
        device: String,
    },
    /// Another machine has the pool imported: its heartbeat moves.
    InUseElsewhere {
        /// The device with the heartbeat.
        device: String,
    },
    /// Another machine used the pool last and did not export it. That machine is silent now.
    NotExportedElsewhere,
    /// Another machine took the pool while this import ran.
    TakenMeanwhile,
    /// A request of an earlier process of this machine changed a device after it was read.
    Overtaken {
        /// The device.
        device: String,
    },
    /// A device is reserved under a key that no owner of the pool has.
    Reserved {
        /// The device.
        device: String,
        /// The key.
        holder: ReservationKey,
    },
    /// The log could not be replayed, or what it holds could not be committed.
    Recovery {
        /// Why.
        error: Box<RecoveryError>,
        /// Data devices that are out of use.
        out_of_use: Vec<String>,
        /// Data devices that are behind the others, and not rebuilt yet.
        behind: Vec<String>,
    },
}

/// Devices that an import would need for a readable root or configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacking {
    /// Data devices that are missing.
    pub missing: Vec<String>,
    /// Data devices that are here without a readable superblock.
    pub rootless: Vec<String>,
}

/// Who knows of changes that are newer than the newest root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witness {
    /// A device with a newer configuration.
    Device(String),
    /// The devices that are here: a newer configuration calls all of them left behind.
    LeftBehind,
    /// This machine's list of known pools.
    KnownPools,
    /// The log: a frame says that group `committed` was under a root, and the newest root has only
    /// group `root`.
    Log {
        /// The group that the frame knows of.
        committed: TxgId,
        /// The last group that the newest root knows of.
        root: TxgId,
    },
}

/// Acknowledged writes that the log does not have any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLoss {
    /// First and last of each run of missing frames. Empty when the log cannot be read behind
    /// `durable`.
    pub frames: Vec<(FrameSeq, FrameSeq)>,
    /// Every frame up to this one was durable.
    pub durable: FrameSeq,
    /// Where the first missing frame should be: device, and offset in bytes.
    pub places: Vec<(String, u64)>,
    /// Devices of the log that are missing.
    pub missing: Vec<String>,
    /// All devices of the log.
    pub devices: Vec<String>,
    /// Volumes concerned, as far as the remains of the log name them.
    pub volumes: Vec<String>,
}

/// Why the map cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapLoadError {
    /// The devices do not make up groups.
    Layout(LayoutError),
    /// The journal cannot be read.
    Segment(Box<SegmentError>),
    /// A frame of the journal cannot be decoded.
    Format(FormatError),
    /// The journal names a segment that no group has.
    UnknownSegment {
        /// The segment.
        segment: SegmentId,
    },
    /// The map does not fit into memory.
    NoMemory(Box<MapTooLarge>),
    /// A block refers to a de-duplicated content that is not there.
    NoContent {
        /// The content's number.
        content: Lba,
    },
    /// A compressed block lies in a packed block that is not there.
    NoPackedBlock {
        /// The packed block's number.
        packed: Lba,
    },
    /// A block lies in a segment that no group has.
    OutsideGroups {
        /// The block's volume.
        volume: VolumeId,
        /// The block.
        lba: Lba,
        /// Where it lies.
        addr: BlockAddr,
    },
    /// A block lies in a segment that is free.
    InFreeSegment {
        /// The block's volume.
        volume: VolumeId,
        /// The block.
        lba: Lba,
        /// Where it lies.
        addr: BlockAddr,
    },
}

/// A map that does not fit into memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapTooLarge {
    /// Bytes that it takes. At least as many, when it has been read in part only.
    pub needed_bytes: u64,
    /// Whether `needed_bytes` is what the root says of the whole map.
    pub is_whole: bool,
    /// Bytes that it may take here.
    pub room_bytes: u64,
    /// The volume with the largest part of it.
    pub volume: String,
    /// Bytes of that part.
    pub volume_bytes: u64,
}

/// Why the log of the last run could not be taken into the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryError {
    /// The log cannot be read.
    Log(LogError),
    /// A second reading of the log did not give the records of the first.
    LogChanged {
        /// The devices with the log.
        devices: Vec<String>,
    },
    /// The new log could not be started.
    LogNotStarted,
    /// What the log holds could not be committed.
    Commit(CommitError),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool '{}' cannot be imported: {}", self.pool, self.kind)
    }
}

/// Devices from which data could come.
fn sources(f: &mut fmt::Formatter<'_>, missing: &[String], behind: &[String]) -> fmt::Result {
    list(f, "missing", missing)?;
    list(f, "behind the others, and not rebuilt yet", behind)
}

impl fmt::Display for ImportErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { unreadable, searched } => not_found(f, unreadable, searched),
            Self::LabelsLost { devices } => labels_lost(f, devices),
            Self::Ambiguous => write!(f, "more than one pool has this name"),
            Self::Destroyed => write!(f, "it was destroyed"),
            Self::FormatVersion { device, expected, found } => write!(
                f,
                "{device} has superblocks of format version {found}, and this program reads \
                 version {expected}"
            ),
            Self::NoSuperblock(lacking) => write!(f, "no readable superblock{lacking}"),
            Self::NoConfiguration { root, holders, generation, lacking, .. } => write!(
                f,
                "root {root} (on {}) needs generation {generation} of the configuration, and no \
                 device has it{lacking}",
                holders.join(", ")
            ),
            Self::RootNotNewest { witness, missing, present } => {
                root_not_newest(f, witness, missing, present)
            }
            Self::HalfMissing { missing } => write!(
                f,
                "half of its devices or more are missing ({}), and may hold newer data than those \
                 that are here",
                missing.join(", ")
            ),
            Self::Diverged { newest, newest_root, others, others_root } => {
                diverged(f, (newest, *newest_root), (others, *others_root))
            }
            Self::NotKept { device } => {
                write!(f, "{device} is no data device of the pool with a readable root")
            }
            Self::TooFewDevices { layout, devices, needed, usable, missing, out_of_use } => {
                write!(
                    f,
                    "its {layout} of {devices} devices needs {needed} of them, and {usable} can be \
                     used"
                )?;
                list(f, "missing", missing)?;
                list(f, "out of use", out_of_use)
            }
            Self::SourcesMissing { segment, missing, behind } => {
                write!(f, "segment {segment} (and perhaps others) is on no device that is here")?;
                sources(f, missing, behind)
            }
            Self::LogMissing { missing, lost_after, unopened, apart } => {
                log_missing(f, missing, *lost_after, (unopened, apart))
            }
            Self::LogLoss(loss) => write!(f, "{loss}"),
            Self::Log(error) => write!(f, "{error}"),
            Self::Map { error, missing, behind } => {
                write!(f, "{error}")?;
                sources(f, missing, behind)
            }
            Self::Layout(error) => write!(f, "{error}"),
            Self::OwnedMeanwhile
            | Self::HeldHere { .. }
            | Self::InUseElsewhere { .. }
            | Self::NotExportedElsewhere
            | Self::TakenMeanwhile
            | Self::Overtaken { .. }
            | Self::Reserved { .. } => other_owner(f, self),
            Self::Recovery { error, out_of_use, behind } => {
                write!(f, "{error}")?;
                list(f, "out of use", out_of_use)?;
                list(f, "behind the others, and not rebuilt yet", behind)
            }
        }
    }
}

fn labels_lost(f: &mut fmt::Formatter<'_>, devices: &[String]) -> fmt::Result {
    write!(f, "its labels cannot be read any more: {}", devices.join(", "))
}

fn not_found(
    f: &mut fmt::Formatter<'_>,
    unreadable: &[DeviceError],
    searched: &[String],
) -> fmt::Result {
    const MAX_NAMED: usize = 8;
    write!(f, "no device has a readable label of it")?;
    if !unreadable.is_empty() {
        let named: Vec<String> = unreadable.iter().take(MAX_NAMED).map(|e| e.to_string()).collect();
        write!(f, "; could not be looked at: {}", named.join(", "))?;
        if unreadable.len() > MAX_NAMED {
            write!(f, " and {} more", unreadable.len() - MAX_NAMED)?;
        }
    } else if (1..=MAX_NAMED).contains(&searched.len()) {
        write!(f, "; looked at: {}", searched.join(", "))?;
    }
    Ok(())
}

fn root_not_newest(
    f: &mut fmt::Formatter<'_>,
    witness: &Witness,
    missing: &[String],
    present: &[String],
) -> fmt::Result {
    write!(f, "{witness} of changes that are newer than the newest root found")?;
    match missing {
        [] => write!(f, "; the devices here ({}) have lost them", present.join(", ")),
        _ => write!(f, "; missing: {}", missing.join(", ")),
    }
}

/// The two sides of a divergence, each with its devices and a root.
fn diverged(
    f: &mut fmt::Formatter<'_>,
    (newest, newest_root): (&str, CommitId),
    (others, others_root): (&[String], CommitId),
) -> fmt::Result {
    write!(
        f,
        "{} went on without {newest} and {newest} without it, so each has writes that the other \
         lacks (roots {others_root} and {newest_root})",
        others.join(", ")
    )
}

fn log_missing(
    f: &mut fmt::Formatter<'_>,
    missing: &[String],
    lost_after: Option<TxgId>,
    (unopened, apart): (&[DeviceError], &[String]),
) -> fmt::Result {
    write!(f, "its log device is missing ({})", missing.join(", "))?;
    match lost_after {
        Some(txg) => write!(f, ", and with it writes acknowledged after group {txg}"),
        None => write!(f, "; no data is lost with it, for the pool was exported"),
    }?;
    list(f, "written apart from the others", apart)?;
    unopened.iter().try_for_each(|error| write!(f, "; {error}"))
}

/// `; WHAT: DEVICES`, or nothing without a device.
fn list(f: &mut fmt::Formatter<'_>, what: &str, devices: &[String]) -> fmt::Result {
    match devices {
        [] => Ok(()),
        _ => write!(f, "; {what}: {}", devices.join(", ")),
    }
}

impl fmt::Display for LogLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Runs of missing frames that are named.
        const MAX_NAMED: usize = 4;
        let Self { frames, durable, places, missing, devices, volumes } = self;
        if frames.is_empty() {
            write!(
                f,
                "it may have lost acknowledged writes: the log cannot be read behind its frame \
                 {durable}"
            )?;
        } else {
            let runs: Vec<String> =
                frames.iter().take(MAX_NAMED).map(|(a, b)| format!("{a} to {b}")).collect();
            write!(
                f,
                "it has lost acknowledged writes: log frames {} were durable (up to {durable}) and \
                 are not there",
                runs.join(", ")
            )?;
        }
        if !places.is_empty() {
            let at = places.iter().map(|(device, at)| format!("{device} at offset {at}"));
            write!(f, " ({})", at.collect::<Vec<_>>().join(", "))?;
        }
        list(f, "missing", missing)?;
        if missing.is_empty() && places.is_empty() {
            write!(f, "; its log is on {}", devices.join(", "))?;
        }
        list(f, "volumes concerned, as far as known", volumes)
    }
}

impl fmt::Display for MapLoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout(error) => write!(f, "{error}"),
            Self::Segment(error) => write!(f, "{error}"),
            Self::Format(error) => write!(f, "{error}"),
            Self::UnknownSegment { segment } => {
                write!(f, "map journal: names segment {segment}, which no group has")
            }
            Self::NoMemory(map) => write!(f, "{map}"),
            Self::NoPackedBlock { packed } => write!(
                f,
                "map journal: a compressed block lies in packed block {packed}, which is not there"
            ),
            Self::NoContent { content } => write!(
                f,
                "map journal: a block refers to de-duplicated content {content}, which is not there"
            ),
            Self::OutsideGroups { volume, lba, addr } => write!(
                f,
                "map journal: block {lba} of volume {volume} is at {addr}, which no group has"
            ),
            Self::InFreeSegment { volume, lba, addr } => write!(
                f,
                "map journal: block {lba} of volume {volume} is at {addr}, in a free segment"
            ),
        }
    }
}

impl fmt::Display for MapTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let least = if self.is_whole { "" } else { "at least " };
        write!(
            f,
            "its map takes {least}{} of memory, {} of it for volume '{}', and there is room for {}",
            format_bytes(self.needed_bytes),
            format_bytes(self.volume_bytes),
            self.volume,
            format_bytes(self.room_bytes)
        )
    }
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(error) => write!(f, "{error}"),
            Self::LogChanged { devices } => {
                let devices = devices.join(", ");
                write!(f, "the log on {devices} does not give the same records twice")
            }
            Self::LogNotStarted => write!(f, "the log could not be started"),
            Self::Commit(error) => write!(f, "{error}"),
        }
    }
}

widens!(ImportErrorKind: Log(LogError), Layout(LayoutError));
widens!(MapLoadError: Layout(LayoutError), Segment(SegmentError), Format(FormatError));
widens!(RecoveryError: Log(LogError), Commit(CommitError));

impl std::error::Error for ImportError {}
