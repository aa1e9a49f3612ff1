use forebay_device::{ErrorKind, Operation};
use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};

use super::*;
use crate::{ImportError, LabelPart, LayoutError};

fn full() -> DeviceError {
    DeviceError::new("a", Operation::Write, 4096, 8192, ErrorKind::NoSpace)
}

fn label() -> LabelError {
    LabelError::Device(full())
}

fn array() -> ArrayError {
    ArrayError::SegmentLost { segment: SegmentId(1), causes: vec![full()] }
}

fn segment() -> SegmentError {
    SegmentError::Footer { segment: SegmentId(1), fault: FooterFault::Unreadable(array()) }
}

fn commit() -> CommitError {
    CommitError::Array(array())
}

fn suspended() -> SuspendReason {
    SuspendReason::Commit(Box::new(commit()))
}

fn import(kind: ImportErrorKind) -> PoolError {
    ImportError { pool: "tank".into(), kind }.into()
}

fn map(error: MapLoadError) -> PoolError {
    import(ImportErrorKind::Map { error: Box::new(error), missing: Vec::new(), behind: Vec::new() })
}

fn recovery(error: RecoveryError) -> PoolError {
    import(ImportErrorKind::Recovery {
        error: Box::new(error),
        out_of_use: Vec::new(),
        behind: Vec::new(),
    })
}

fn pool() -> String {
    "tank".to_owned()
}

fn device() -> String {
    "a".to_owned()
}

fn journal(fault: JournalFault) -> CommitError {
    let addr = BlockAddr::new(SegmentId(1), 0);
    SegmentError::Journal { seq: 1, addr, location: None, fault }.into()
}

/// Errors of which each has the one error of a device beneath it.
fn with_a_device_error() -> Vec<PoolError> {
    let reason = suspended;
    let unread = JournalFault::Unreadable(array());
    let (volume, lba, addr) = (VolumeId(1), Lba(0), BlockAddr::new(SegmentId(1), 0));
    let block = SegmentError::Block { volume, lba, addr, fault: BlockFault::Unreadable(array()) };
    let (part, written, last) = (LabelPart::Root, 1, Some(Box::new(label())));
    vec![
        import(ImportErrorKind::NotFound { unreadable: vec![full()], searched: Vec::new() }),
        import(ImportErrorKind::LogMissing {
            missing: vec![device()],
            lost_after: None,
            unopened: vec![full()],
            apart: Vec::new(),
        }),
        map(MapLoadError::Layout(LayoutError(array()))),
        map(MapLoadError::Segment(Box::new(segment()))),
        recovery(RecoveryError::Commit(commit())),
        import(ImportErrorKind::Layout(LayoutError(array()))),
        AdminError::Suspended { pool: pool(), reason: reason() }.into(),
        AdminError::Candidate(CandidateError::Open(full())).into(),
        AdminError::Candidate(CandidateError::NotWritable(full())).into(),
        AdminError::LogPlace(full()).into(),
        AdminError::Device(full()).into(),
        AdminError::Label(label()).into(),
        AdminError::NotTakenIn {
            pool: pool(),
            device: device(),
            error: Box::new(AdminError::Device(full())),
        }
        .into(),
        AdminError::Member { device: device(), error: array() }.into(),
        AdminError::Layout(LayoutError(array())).into(),
        AdminError::Commit(commit()).into(),
        VolumeError::Commit(commit()).into(),
        VolumeError::Suspended { pool: pool(), reason: reason() }.into(),
        CloseError::Suspended { pool: pool(), reason: reason() }.into(),
        CommitError::Suspended(reason()).into(),
        CommitError::LabelNotWritten { part, written, last }.into(),
        commit().into(),
        CommitError::Segment(Box::new(block)).into(),
        CommitError::Segment(Box::new(segment())).into(),
        journal(unread.clone()).into(),
        journal(JournalFault::Unrepairable(Box::new(unread))).into(),
        ScrubError::NotRunning { pool: pool(), error: commit() }.into(),
        TransferError::Device(full()).into(),
        TransferError::Commit(commit()).into(),
        TransferError::Volume(VolumeError::Commit(commit())).into(),
        TransferError::Volume(VolumeError::Suspended { pool: pool(), reason: reason() }).into(),
    ]
}

#[test]
fn an_error_names_what_a_device_said_however_deep_it_lies() {
    for error in with_a_device_error() {
        assert_eq!(error.device_errors(), [&full()], "{error:?}");
        let PoolError::Import(import) = error else { continue };
        let resume = PoolError::from(ResumeError::Import(Box::new(import)));
        assert_eq!(resume.device_errors(), [&full()], "{resume:?}");
    }
    let (error, needed) = (Box::new(label()), Box::new(array()));
    let log = CommitError::Suspended(SuspendReason::LogDevice { error, needed });
    assert_eq!(PoolError::from(log).device_errors(), [&full(), &full()]);
    for error in [
        ArrayError::Unreadable {
            addr: BlockAddr::new(SegmentId(1), 0),
            blocks: 1,
            have: 1,
            need: 2,
            causes: vec![full()],
        },
        ArrayError::NotWritable { segment: SegmentId(1), have: 1, need: 2, causes: vec![full()] },
        ArrayError::FlushLost { segments: vec![SegmentId(1)], causes: vec![full()] },
    ] {
        assert_eq!(PoolError::from(CommitError::Array(error)).device_errors(), [&full()]);
    }
}
