use forebay_device::{DeviceError, ErrorKind, Operation};
use forebay_pool::status::Importable;
use forebay_pool::{
    AdminError, CandidateError, CloseError, CommitError, ImportError, ImportErrorKind, LabelPart,
    Lacking, ScrubError, SuspendReason, TransferError, VolumeError,
};
use forebay_units::CommitId;

use super::importable_line;
use crate::failure::{ErrorCode, Failure};

fn full() -> DeviceError {
    DeviceError::new("/srv/d0", Operation::Write, 0, 4096, ErrorKind::NoSpace)
}

#[test]
fn refused_import_says_which_devices_lack_and_what_helps() {
    let missing = vec!["/srv/a".to_owned()];
    let kind = ImportErrorKind::HalfMissing { missing };
    let failure = Failure::from(ImportError { pool: "tank".into(), kind: kind.clone() });
    assert_eq!(failure.code, ErrorCode::PoolUnavailable);
    assert_eq!(
        failure.line(),
        "pool 'tank' cannot be imported: half of its devices or more are missing (/srv/a), and may \
         hold newer data than those that are here; bring them back, or use -f if you are sure that \
         they hold nothing newer"
    );
    assert_eq!(
        importable_line("tank", &Importable::Refused(kind)),
        "cannot be imported: half of its devices or more are missing (/srv/a), and may hold newer \
         data than those that are here; bring them back, or use -f if you are sure that they hold \
         nothing newer"
    );
}

#[test]
fn rewind_is_advised_only_where_an_older_root_can_be_had() {
    let hint = |kind| Failure::from(ImportError { pool: "tank".into(), kind }).hint;
    let lost = |has_older| ImportErrorKind::NoConfiguration {
        root: CommitId(7),
        holders: vec!["/srv/a".to_owned()],
        generation: 3,
        lacking: Lacking::default(),
        has_older,
    };
    assert!(hint(lost(true)).contains("-F"));
    assert!(!hint(lost(false)).contains("-F"));
    assert!(hint(ImportErrorKind::NoSuperblock(Lacking::default())).contains("-F less often"));
}

#[test]
fn errors_of_each_family_name_the_command_that_helps() {
    let pool = || "tank".to_owned();
    let device = || "/srv/d0".to_owned();
    let failures: [(Failure, ErrorCode, &str); 8] = [
        (
            AdminError::SideOfLog { pool: pool(), device: device(), mirror: 1 }.into(),
            ErrorCode::PoolError,
            "'forebay pool detach tank /srv/d0' takes it out, 'forebay pool remove tank mirror-1' \
             removes all sides of the mirror",
        ),
        (
            AdminError::from(CandidateError::InUse { device: device() }).into(),
            ErrorCode::DeviceInUse,
            "name another device, or export that pool first",
        ),
        (
            VolumeError::NotFound { pool: pool(), volume: "v".into() }.into(),
            ErrorCode::VolumeNotFound,
            "'forebay volume list tank' lists those that are",
        ),
        (
            CloseError::JournalDamaged { pool: pool() }.into(),
            ErrorCode::PoolError,
            "trim or destroy what is not needed, or add devices, and export it again",
        ),
        (
            CommitError::LabelNotWritten {
                part: LabelPart::Root,
                written: 0,
                last: Some(Box::new(full().into())),
            }
            .into(),
            ErrorCode::NoSpace,
            "make room where its device files lie, and try again",
        ),
        (
            AdminError::Suspended { pool: pool(), reason: SuspendReason::TakenOver }.into(),
            ErrorCode::PoolError,
            "'forebay pool export -f tank' lets go of what is left of it here",
        ),
        (
            TransferError::Device(full()).into(),
            ErrorCode::NoSpace,
            "add devices, or destroy or trim what is not needed",
        ),
        (
            ScrubError::InProgress { pool: pool() }.into(),
            ErrorCode::PoolError,
            "'forebay pool status' shows how far it is, 'forebay pool scrub -s' stops a scrub",
        ),
    ];
    for (failure, code, hint) in failures {
        assert_eq!((failure.code, failure.hint.as_str()), (code, hint), "{}", failure.message);
    }
}

#[test]
fn error_in_a_suspended_pool_says_whether_the_change_may_have_been_made() {
    let failed = || CommitError::LabelNotWritten {
        part: LabelPart::Root,
        written: 1,
        last: Some(Box::new(full().into())),
    };
    let begun = || CommitError::Suspended(failed().into());
    let refused = VolumeError::Suspended { pool: "tank".into(), reason: failed().into() };
    for (failure, hint) in [
        (
            Failure::from(refused),
            "make room where its device files lie; 'forebay pool clear tank' goes on; then repeat \
             this",
        ),
        (
            VolumeError::from(begun()).into(),
            "make room where its device files lie; whether the change was made shows when the pool \
             goes on ('forebay pool clear')",
        ),
        (
            AdminError::from(begun()).into(),
            "make room where its device files lie; whether the change was made shows when the pool \
             goes on ('forebay pool clear')",
        ),
    ] {
        assert_eq!((failure.code, failure.hint.as_str()), (ErrorCode::NoSpace, hint));
    }
}

#[test]
fn spare_that_holds_something_is_not_to_be_forced() {
    let (device, content) = ("/srv/d0".to_owned(), "swap space");
    let error = AdminError::SpareNotEmpty(CandidateError::NotEmpty { device, content });
    assert_eq!(
        Failure::from(error).line(),
        "/srv/d0 holds swap space; a spare must be empty, also with -f; 'wipefs -a /srv/d0' clears \
         it (what is on it is lost)"
    );
    let (pool, device) = ("tank".to_owned(), "/srv/d0".to_owned());
    let spare = AdminError::NotMember { pool, device, is_spare: true };
    assert_eq!(
        Failure::from(spare).line(),
        "/srv/d0 is a spare of 'tank', and no member; 'forebay pool remove tank /srv/d0' \
         takes it out of the pool"
    );
}
