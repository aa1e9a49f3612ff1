//! Errors of devices beneath an error of a pool: which devices failed, and how.

use forebay_array::ArrayError;
use forebay_device::DeviceError;
use forebay_segment::{BlockFault, FooterFault, JournalFault, SegmentError};

use crate::{
    AdminError, CandidateError, CloseError, CommitError, ImportErrorKind, LabelError, MapLoadError,
    PoolError, RecoveryError, ResumeError, ScrubError, SuspendReason, TransferError, VolumeError,
};

impl PoolError {
    /// What devices said that led to this error.
    #[must_use]
    pub fn device_errors(&self) -> Vec<&DeviceError> {
        match self {
            Self::Import(error) => of_import(&error.kind),
            Self::Admin(error) => of_admin(error),
            Self::Volume(error) => of_volume(error),
            Self::Commit(error) => of_commit(error),
            Self::Close(CloseError::Suspended { reason, .. }) => of_reason(reason),
            Self::Close(CloseError::Closing { .. } | CloseError::JournalDamaged { .. }) => {
                Vec::new()
            }
            Self::Scrub(ScrubError::NotRunning { error, .. }) => of_commit(error),
            Self::Resume(ResumeError::Import(error)) => of_import(&error.kind),
            Self::Resume(_) => Vec::new(),
            Self::Transfer(TransferError::Device(error)) => vec![error],
            Self::Transfer(TransferError::Commit(error)) => of_commit(error),
            Self::Transfer(TransferError::Volume(error)) => of_volume(error),
            Self::Transfer(_) => Vec::new(),
            Self::Scrub(ScrubError::InProgress { .. } | ScrubError::NotInProgress { .. }) => {
                Vec::new()
            }
        }
    }
}

fn of_import(kind: &ImportErrorKind) -> Vec<&DeviceError> {
    match kind {
        ImportErrorKind::NotFound { unreadable: errors, .. }
        | ImportErrorKind::LogMissing { unopened: errors, .. } => errors.iter().collect(),
        ImportErrorKind::Map { error, .. } => match &**error {
            MapLoadError::Layout(error) => of_array(&error.0),
            MapLoadError::Segment(error) => of_segment(error),
            _ => Vec::new(),
        },
        ImportErrorKind::Recovery { error, .. } => match &**error {
            RecoveryError::Commit(error) => of_commit(error),
            _ => Vec::new(),
        },
        ImportErrorKind::Layout(error) => of_array(&error.0),
        _ => Vec::new(),
    }
}

fn of_admin(error: &AdminError) -> Vec<&DeviceError> {
    match error {
        AdminError::Suspended { reason, .. } => of_reason(reason),
        AdminError::Candidate(CandidateError::Open(error) | CandidateError::NotWritable(error))
        | AdminError::LogPlace(error)
        | AdminError::Device(error) => vec![error],
        AdminError::Label(error) => of_label(error),
        AdminError::NotTakenIn { error, .. } => of_admin(error),
        AdminError::Member { error, .. } => of_array(error),
        AdminError::Layout(error) => of_array(&error.0),
        AdminError::Commit(error) => of_commit(error),
        _ => Vec::new(),
    }
}

fn of_volume(error: &VolumeError) -> Vec<&DeviceError> {
    match error {
        VolumeError::Commit(error) => of_commit(error),
        VolumeError::Suspended { reason, .. } => of_reason(reason),
        _ => Vec::new(),
    }
}

fn of_commit(error: &CommitError) -> Vec<&DeviceError> {
    match error {
        CommitError::Suspended(reason) => of_reason(reason),
        CommitError::LabelNotWritten { last: Some(error), .. } => of_label(error),
        CommitError::Array(error) => of_array(error),
        CommitError::Segment(error) => of_segment(error),
        _ => Vec::new(),
    }
}

fn of_reason(reason: &SuspendReason) -> Vec<&DeviceError> {
    match reason {
        SuspendReason::Commit(error) => of_commit(error),
        SuspendReason::LogDevice { error, needed } => {
            of_label(error).into_iter().chain(of_array(needed)).collect()
        }
        SuspendReason::TakenOver | SuspendReason::Log(_) => Vec::new(),
    }
}

fn of_label(error: &LabelError) -> Vec<&DeviceError> {
    match error {
        LabelError::Device(error) => vec![error],
        LabelError::Format(_) | LabelError::OtherPool { .. } => Vec::new(),
    }
}

fn of_array(error: &ArrayError) -> Vec<&DeviceError> {
    match error {
        ArrayError::Unreadable { causes, .. }
        | ArrayError::NotWritable { causes, .. }
        | ArrayError::SegmentLost { causes, .. }
        | ArrayError::FlushLost { causes, .. } => causes.iter().collect(),
        _ => Vec::new(),
    }
}

fn of_segment(error: &SegmentError) -> Vec<&DeviceError> {
    match error {
        SegmentError::Block { fault: BlockFault::Unreadable(error), .. }
        | SegmentError::Footer { fault: FooterFault::Unreadable(error), .. } => of_array(error),
        SegmentError::Journal { fault, .. } => of_journal(fault),
        _ => Vec::new(),
    }
}

fn of_journal(fault: &JournalFault) -> Vec<&DeviceError> {
    match fault {
        JournalFault::Unreadable(error) => of_array(error),
        JournalFault::Unrepairable(fault) => of_journal(fault),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
