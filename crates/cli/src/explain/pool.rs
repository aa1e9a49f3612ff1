//! Codes and hints for errors of pools.
//!
//! What enters: errors of a pool, by family. What leaves: a stable code, and the command that
//! helps. What always holds: each reason for which an import is refused has a hint. Who calls:
//! every command that works on a pool.

use forebay_device::ErrorKind;
use forebay_pool::status::Importable;
use forebay_pool::{
    AdminError, ArrayError, CandidateError, CloseError, CommitError, ImportError, ImportErrorKind,
    Lacking, MapLoadError, NameError, PoolError, PropertyError, RecoveryError, ResumeError,
    ScrubError, SegmentError, SpaceFor, SuspendReason, TransferError, UsableChange, VolumeError,
};

use super::Explain;
use crate::failure::ErrorCode;

const BRING_BACK: &str = "bring devices back";
const LOOK_ELSEWHERE: &str =
    "bring devices back ('forebay pool import -d DIR' looks for them elsewhere)";
const GIVE_UP_SOURCES: &str = "bring them back, or use -f to give up what they alone have";
const NO_MACHINE: &str = "use -f to import it if you are sure that no machine uses it";
const MAKE_ROOM: &str = "make room where its device files lie";

impl Explain for PoolError {
    fn code(&self) -> ErrorCode {
        let code = match self {
            Self::Import(error) => import_code(&error.kind),
            Self::Admin(error) => admin_code(error),
            Self::Volume(error) => volume_code(error),
            Self::Resume(ResumeError::Import(error)) => import_code(&error.kind),
            Self::Transfer(error) => super::transfer::code(error),
            Self::Close(_) | Self::Commit(_) | Self::Scrub(_) | Self::Resume(_) => {
                ErrorCode::PoolError
            }
        };
        match code {
            ErrorCode::PoolError if is_out_of_space(self) => ErrorCode::NoSpace,
            code => code,
        }
    }

    fn hint(&self) -> String {
        let hint = match self {
            Self::Import(error) => import_hint(&error.pool, &error.kind),
            Self::Admin(error) => admin_hint(error),
            Self::Volume(error) => volume_hint(error),
            Self::Close(error) => close_hint(error),
            Self::Commit(error) => commit_hint(error),
            Self::Scrub(error) => scrub_hint(error),
            Self::Resume(error) => resume_hint(error),
            Self::Transfer(error) => super::transfer::hint(error),
        };
        match hint {
            hint if !is_out_of_space(self) => hint,
            hint if hint.is_empty() => format!("{MAKE_ROOM}, and try again"),
            hint if is_suspended(self) => format!("{MAKE_ROOM}; {hint}"),
            hint => hint,
        }
    }
}

macro_rules! explained {
    ($($error:ty),*) => {
        $(impl Explain for $error {
            fn code(&self) -> ErrorCode {
                PoolError::from(self.clone()).code()
            }

            fn hint(&self) -> String {
                PoolError::from(self.clone()).hint()
            }
        })*
    };
}
explained!(
    AdminError,
    CloseError,
    CommitError,
    ImportError,
    ResumeError,
    ScrubError,
    TransferError,
    VolumeError
);

/// Whether a device or the pool was full.
fn is_out_of_space(error: &PoolError) -> bool {
    error.device_errors().iter().any(|error| error.kind == ErrorKind::NoSpace)
}

fn is_suspended(error: &PoolError) -> bool {
    matches!(
        error,
        PoolError::Admin(
            AdminError::Suspended { .. } | AdminError::Commit(CommitError::Suspended(_))
        ) | PoolError::Volume(
            VolumeError::Suspended { .. } | VolumeError::Commit(CommitError::Suspended(_))
        )
    )
}

fn import_code(kind: &ImportErrorKind) -> ErrorCode {
    match kind {
        ImportErrorKind::NotFound { .. } => ErrorCode::PoolNotFound,
        ImportErrorKind::Ambiguous => ErrorCode::PoolAmbiguous,
        ImportErrorKind::NotExportedElsewhere => ErrorCode::PoolNotExported,
        ImportErrorKind::HeldHere { .. } => ErrorCode::DeviceInUse,
        _ => ErrorCode::PoolUnavailable,
    }
}

fn import_hint(pool: &str, kind: &ImportErrorKind) -> String {
    use ImportErrorKind as Kind;
    match kind {
        Kind::NotFound { searched, .. } => {
            let lists = "'forebay pool import' without a name lists what is there";
            match searched[..] {
                [] => lists.to_owned(),
                _ => format!("{BRING_BACK}; {lists}"),
            }
        }
        Kind::LabelsLost { .. } | Kind::Layout(_) => BRING_BACK.to_owned(),
        Kind::Ambiguous => "import it by its number".to_owned(),
        Kind::Destroyed => "'forebay pool create' makes a new one of its devices".to_owned(),
        Kind::FormatVersion { .. } => "use the program that wrote them".to_owned(),
        Kind::TooFewDevices { .. } => LOOK_ELSEWHERE.to_owned(),
        Kind::NoSuperblock(_) | Kind::NoConfiguration { .. } => no_root_hint(kind),
        Kind::RootNotNewest { missing, .. } if missing.is_empty() => {
            "use -f to go back to what is here".to_owned()
        }
        Kind::RootNotNewest { .. } => {
            "bring them back, or use -f to go back to what is here".to_owned()
        }
        Kind::HalfMissing { .. } => {
            "bring them back, or use -f if you are sure that they hold nothing newer".to_owned()
        }
        Kind::Diverged { newest, others, .. } => format!(
            "'forebay pool import --keep {newest} {pool}' goes on with what {newest} has, '--keep \
             {}' with the other, and 'forebay pool replace {pool} DEV' then takes the one that was \
             left behind in anew",
            others[0]
        ),
        Kind::NotKept { .. } => {
            "name one of the devices that 'forebay pool import' shows".to_owned()
        }
        Kind::SourcesMissing { .. } => GIVE_UP_SOURCES.to_owned(),
        Kind::LogMissing { lost_after, .. } => missing_log_hint(lost_after.is_some()),
        Kind::LogLoss(_) => {
            "bring the log device back, or import with -m to go on without these writes".to_owned()
        }
        Kind::Log(_) => {
            "bring the log's devices back, or import with -m to go on without what they hold"
                .to_owned()
        }
        Kind::Map { error, missing, behind } => {
            map_hint(error, missing.is_empty() && behind.is_empty())
        }
        Kind::OwnedMeanwhile => {
            "'forebay pool export -f' lets go of what is left of it here".to_owned()
        }
        Kind::HeldHere { .. } => "try again, or end that process first".to_owned(),
        Kind::InUseElsewhere { .. } => "export it there first".to_owned(),
        Kind::NotExportedElsewhere => {
            "use -f to import it if you are sure that that machine is off".to_owned()
        }
        Kind::TakenMeanwhile => {
            "export it there, or turn that machine off and try again".to_owned()
        }
        Kind::Overtaken { .. } => "import it again".to_owned(),
        Kind::Reserved { .. } => NO_MACHINE.to_owned(),
        Kind::Recovery { error, .. } if matches!(**error, RecoveryError::LogChanged { .. }) => {
            "look at what the kernel says of the log's devices, and import it again".to_owned()
        }
        Kind::Recovery { .. } => {
            "bring devices back, or make room where device files lie, and import it again"
                .to_owned()
        }
    }
}

/// What helps if the root that an import is to go on with, or its configuration, cannot be had.
fn no_root_hint(kind: &ImportErrorKind) -> String {
    match kind {
        // The devices have superblocks: it was to go back by more than they have.
        ImportErrorKind::NoSuperblock(lacking) if *lacking == Lacking::default() => {
            "go back by fewer groups: give -F less often".to_owned()
        }
        ImportErrorKind::NoConfiguration { has_older: true, .. } => {
            format!("one more -F goes back to an older root; {LOOK_ELSEWHERE}")
        }
        _ => LOOK_ELSEWHERE.to_owned(),
    }
}

fn map_hint(error: &MapLoadError, all_are_here: bool) -> String {
    let hint = match error {
        MapLoadError::NoMemory(_) => {
            "import it on a machine with more memory, or raise the limit of this process; trims \
             there make the map smaller"
        }
        _ if all_are_here => {
            "no device is missing: 'forebay pool import -F' goes back to an older root, if that \
             can be read"
        }
        _ => BRING_BACK,
    };
    hint.to_owned()
}

fn missing_log_hint(loses_writes: bool) -> String {
    let how = if loses_writes { "to lose those writes" } else { "to go on without it" };
    format!(
        "bring it back ('forebay pool import -d DIR' looks for it elsewhere), or use 'forebay pool \
         import -m' {how}"
    )
}

fn admin_code(error: &AdminError) -> ErrorCode {
    match error {
        AdminError::Candidate(CandidateError::InUse { .. }) => ErrorCode::DeviceInUse,
        AdminError::Candidate(CandidateError::TooSmall { .. }) => ErrorCode::DeviceUnusable,
        AdminError::NamedTwice { .. } => ErrorCode::DeviceNamedTwice,
        AdminError::UnknownDevice { .. } => ErrorCode::DeviceNotFound,
        AdminError::Interrupted => ErrorCode::Interrupted,
        AdminError::Property(PropertyError::Unknown { .. }) => ErrorCode::PropertyUnknown,
        AdminError::NotTakenIn { error, .. } => admin_code(error),
        _ => ErrorCode::PoolError,
    }
}

fn admin_hint(error: &AdminError) -> String {
    match error {
        AdminError::Suspended { pool, reason } => suspended_hint(pool, reason),
        AdminError::Candidate(error) => candidate_hint(error).to_owned(),
        AdminError::SpareNotEmpty(error) => spare_hint(error),
        AdminError::NotMember { pool, device, .. } => {
            format!("'forebay pool remove {pool} {device}' takes it out of the pool")
        }
        AdminError::NamedTwice { .. } => "name each device once".to_owned(),
        AdminError::UnlikeGroups { .. } | AdminError::UnlikeKinds { .. } => {
            "make them alike, or use -f if that is what you want".to_owned()
        }
        AdminError::LogPlace(_) => "make room, or name another device".to_owned(),
        AdminError::UnknownDevice { pool, .. } => {
            format!("'forebay pool status {pool}' lists them")
        }
        AdminError::AmbiguousDevice { .. } => "give the whole path".to_owned(),
        AdminError::NamesGroup { pool, .. } => {
            format!("name one of its devices: 'forebay pool status {pool}' lists them")
        }
        AdminError::DataDevice { .. } => {
            "'forebay pool replace' puts another in its place".to_owned()
        }
        AdminError::SideOfLog { pool, device, mirror } => format!(
            "'forebay pool detach {pool} {device}' takes it out, 'forebay pool remove {pool} \
             mirror-{mirror}' removes all sides of the mirror"
        ),
        AdminError::OnlySide { .. } => "'forebay pool remove' removes it".to_owned(),
        AdminError::OnlyUsableSide { .. } => "remove it instead".to_owned(),
        AdminError::NoDevice => "name another device".to_owned(),
        AdminError::InUseHere { .. } => {
            "take it offline first to replace it with itself, or name another device".to_owned()
        }
        AdminError::CopyOfOneInUse { pool, .. } => {
            format!("nothing is to be brought online: 'forebay pool status {pool}' shows it")
        }
        AdminError::SideFailed { pool, .. } => {
            format!("'forebay pool events {pool}' says why it failed")
        }
        AdminError::IsItself { pool, path, .. } => {
            format!("'forebay pool online {pool} {path}' takes it back with what it holds")
        }
        AdminError::NotTakenIn { pool, device, .. } => {
            format!("'forebay pool online {pool} {device}' brings it back as it was")
        }
        AdminError::LateCommands { .. } => {
            "wait until it has ended them, or put another device in its place with 'forebay pool \
             replace'"
                .to_owned()
        }
        AdminError::LabelGone { .. } => {
            "use 'forebay pool replace' to make it part of the pool again".to_owned()
        }
        AdminError::Diverged { pool, device } => format!(
            "'forebay pool replace {pool} {device}' takes it in anew, without what only it has"
        ),
        AdminError::Member { error, .. } => array_hint(error).to_owned(),
        AdminError::ConfigTooLarge(_) => "it has too many volumes or devices".to_owned(),
        AdminError::TooLittleUsable { change, .. } => usable_hint(change),
        AdminError::Name(NameError::Reserved { .. }) => "choose another name".to_owned(),
        AdminError::Commit(error) => unfinished_hint(error),
        _ => String::new(),
    }
}

fn spare_hint(error: &CandidateError) -> String {
    let clears = match error {
        CandidateError::OwnedByPool { device, .. } => {
            format!("'forebay pool labelclear -f {device}' clears it (what that pool has")
        }
        CandidateError::NotEmpty { device, .. } => {
            format!("'wipefs -a {device}' clears it (what is")
        }
        _ => return String::new(),
    };
    format!("a spare must be empty, also with -f; {clears} on it is lost)")
}

fn candidate_hint(error: &CandidateError) -> &'static str {
    match error {
        CandidateError::InUse { .. } => "name another device, or export that pool first",
        CandidateError::TooSmall { .. } => "use a larger device",
        CandidateError::OwnedByPool { .. } => {
            "use -f to take it all the same (what that pool has on it is lost)"
        }
        CandidateError::NotEmpty { .. } => "use -f to take it all the same (what is on it is lost)",
        CandidateError::Reserved { .. } => {
            "use -f to take it if you are sure that no machine uses it"
        }
        CandidateError::NotWritable(_) => "name another device",
        CandidateError::Open(_) => "",
    }
}

fn array_hint(error: &ArrayError) -> &'static str {
    match error {
        ArrayError::WouldLose { .. } => "let rebuilding finish, or bring other devices back first",
        ArrayError::TooSmall { .. } => "use a larger device",
        ArrayError::Unreadable { .. } => BRING_BACK,
        ArrayError::NotWritable { .. } | ArrayError::SourcesMissing { .. } => {
            "bring devices back or replace them"
        }
        _ => "",
    }
}

pub(super) fn volume_code(error: &VolumeError) -> ErrorCode {
    match error {
        VolumeError::NotFound { .. } | VolumeError::NoSnapshot { .. } => ErrorCode::VolumeNotFound,
        VolumeError::BadSize { .. } => ErrorCode::VolumeSize,
        VolumeError::NoSpace { .. } => ErrorCode::NoSpace,
        VolumeError::Property(PropertyError::Unknown { .. }) => ErrorCode::PropertyUnknown,
        _ => ErrorCode::PoolError,
    }
}

pub(super) fn volume_hint(error: &VolumeError) -> String {
    match error {
        VolumeError::NotFound { pool, .. } => {
            format!("'forebay volume list {pool}' lists those that are")
        }
        VolumeError::Exists { .. } => "choose another name".to_owned(),
        VolumeError::NoSpace { wanted_for: SpaceFor::Volume, .. } => {
            "make it smaller, or sparse (-s)".to_owned()
        }
        VolumeError::NoSpace { .. } => {
            "add devices, or destroy or trim what is not needed".to_owned()
        }
        VolumeError::WouldShrink { .. } => "'forebay volume resize -f' does so".to_owned(),
        VolumeError::ConfigTooLarge(_) => "it has too many volumes or devices".to_owned(),
        VolumeError::Commit(error) => unfinished_hint(error),
        VolumeError::Suspended { pool, reason } => suspended_hint(pool, reason),
        VolumeError::NoSnapshot { pool, .. } => {
            format!("'forebay volume list -t snapshot {pool}' lists those that are")
        }
        VolumeError::SnapshotExists { .. } => "choose another name".to_owned(),
        VolumeError::HasSnapshots { .. } => "'forebay volume destroy -r' destroys them too".into(),
        VolumeError::HasClones { clones, .. } => {
            let clone = clones.first().map_or("CLONE", String::as_str);
            format!("destroy the clones first, or 'forebay volume promote {clone}'")
        }
        VolumeError::SnapshotsExist { name, snapshots } => {
            let snapshot = snapshots.first().map_or("SNAP", String::as_str);
            format!("'forebay volume rename {name}@{snapshot} {name}@NEW' gives one another name")
        }
        VolumeError::IsHeld { name, tags } => {
            let tag = tags.first().map_or("TAG", String::as_str);
            format!("'forebay volume release {tag} {name}' lets it go")
        }
        VolumeError::NotNewest { .. } => {
            "'forebay volume rollback -r' destroys the newer ones".to_owned()
        }
        VolumeError::OldFormat { pool, .. } => {
            format!("'forebay pool upgrade {pool}' brings it to the newest version")
        }
        VolumeError::DedupNeedsSparse { volume, has_refs: false }
        | VolumeError::CompressionNeedsSparse { volume } => {
            format!(
                "create it with -s, or 'forebay volume set reservation=none POOL/{volume}' makes \
                 it sparse"
            )
        }
        VolumeError::Receiving { name, is_underway: false } => format!(
            "'forebay volume get receive_resume_token {name}' shows how it goes on, 'forebay \
             volume receive -A {name}' gives it up"
        ),
        VolumeError::Receiving { is_underway: true, .. } => "wait for its end".to_owned(),
        VolumeError::NotReceiving { .. }
        | VolumeError::NotAClone { .. }
        | VolumeError::BadSize { .. }
        | VolumeError::DedupNeedsSparse { .. }
        | VolumeError::Property(_)
        | VolumeError::Name(_)
        | VolumeError::Tag { .. }
        | VolumeError::TooManyHolds { .. } => String::new(),
    }
}

fn close_hint(error: &CloseError) -> String {
    match error {
        CloseError::Closing { .. } => String::new(),
        CloseError::JournalDamaged { .. } => {
            "trim or destroy what is not needed, or add devices, and export it again".to_owned()
        }
        CloseError::Suspended { reason, .. } => reason_hint(reason),
    }
}

fn scrub_hint(error: &ScrubError) -> String {
    match error {
        ScrubError::NotRunning { error, .. } => commit_hint(error),
        ScrubError::InProgress { .. } => {
            "'forebay pool status' shows how far it is, 'forebay pool scrub -s' stops a scrub"
                .to_owned()
        }
        ScrubError::NotInProgress { .. } => String::new(),
    }
}

fn resume_hint(error: &ResumeError) -> String {
    match error {
        ResumeError::NotSuspended { .. } => String::new(),
        ResumeError::TakenOver { pool } => let_go_hint(pool),
        ResumeError::CommandsUnderWay { .. } => {
            "try again when the device answers, or take it away".to_owned()
        }
        ResumeError::Import(error) => match error.kind {
            ImportErrorKind::Recovery { .. } => {
                "bring devices back, or make room where device files lie, and try again".to_owned()
            }
            _ => import_hint(&error.pool, &error.kind),
        },
    }
}

pub(super) fn commit_hint(error: &CommitError) -> String {
    match error {
        CommitError::Suspended(reason) => reason_hint(reason),
        CommitError::Array(error) => array_hint(error).to_owned(),
        CommitError::Segment(error) if **error == SegmentError::NoSpace => {
            "trim or destroy what is not needed, or add devices".to_owned()
        }
        _ => String::new(),
    }
}

/// What helps when volumes would have less space than they have. Without redundancy the journal of
/// the map is kept twice.
fn usable_hint(change: &UsableChange) -> String {
    let help = match change {
        UsableChange::DirtyLimit => return "give a lower one".to_owned(),
        UsableChange::Without { .. } => "replace the device instead",
        UsableChange::Groups => "add a group with redundancy",
    };
    format!(
        "without redundancy a pool keeps its journal twice: {help}, or make room in volumes first"
    )
}

/// The same for a change that was begun: a pool that was suspended meanwhile may have it or not.
fn unfinished_hint(error: &CommitError) -> String {
    let hint = commit_hint(error);
    if !matches!(error, CommitError::Suspended(_)) {
        return hint;
    }
    let unknown = "whether the change was made shows when the pool goes on ('forebay pool clear')";
    if hint.is_empty() { unknown.to_owned() } else { format!("{unknown}; {hint}") }
}

fn reason_hint(reason: &SuspendReason) -> String {
    match reason {
        SuspendReason::TakenOver => "it must be imported anew".to_owned(),
        SuspendReason::Commit(error) => commit_hint(error),
        SuspendReason::LogDevice { needed, .. } => array_hint(needed).to_owned(),
        SuspendReason::Log(_) => String::new(),
    }
}

fn let_go_hint(pool: &str) -> String {
    format!("'forebay pool export -f {pool}' lets go of what is left of it here")
}

fn suspended_hint(pool: &str, reason: &SuspendReason) -> String {
    if *reason == SuspendReason::TakenOver {
        return let_go_hint(pool);
    }
    let steps = format!("'forebay pool clear {pool}' goes on; then repeat this");
    match reason_hint(reason) {
        hint if hint.is_empty() => steps,
        hint => format!("{hint}; {steps}"),
    }
}

/// What `pool import` says of a pool that it found; empty when there is nothing to say.
#[must_use]
pub fn importable_line(pool: &str, importable: &Importable) -> String {
    match importable {
        Importable::Exported => String::new(),
        Importable::NotExported => "was not closed cleanly; an import replays its log".to_owned(),
        Importable::WithoutLog { loses_writes: false } => {
            "its log device is missing: import with -m to go on without it (no data is lost with \
             it)"
            .to_owned()
        }
        Importable::WithoutLog { loses_writes: true } => {
            "its log device is missing, and with it acknowledged writes: bring it back, or import \
             with -m to lose them"
                .to_owned()
        }
        Importable::Refused(kind) => {
            format!("cannot be imported: {kind}; {}", import_hint(pool, kind))
        }
    }
}

#[cfg(test)]
mod tests;
