//! Errors of each family, as they read.

use forebay_device::{DeviceError, ErrorKind, Operation};
use forebay_rt::Runtime;
use forebay_units::{FrameSeq, Layout, TxgId};

use super::rack::Rack;
use super::{names, spec};
use crate::{
    AdminError, CandidateError, CloseError, CommitError, ImportError, ImportErrorKind, LabelPart,
    LogLoss, Pool, PoolError, ScrubError, SpaceFor, SuspendReason, VolumeError, Witness,
};

fn refused(kind: ImportErrorKind) -> String {
    PoolError::from(ImportError { pool: "tank".into(), kind }).to_string()
}

#[test]
fn import_errors_name_pool_and_devices_in_one_line() {
    assert_eq!(
        refused(ImportErrorKind::TooFewDevices {
            layout: Layout::Raidz1,
            devices: 4,
            needed: 3,
            usable: 2,
            missing: names(&["a"]),
            out_of_use: names(&["b"]),
        }),
        "pool 'tank' cannot be imported: its raidz1 of 4 devices needs 3 of them, and 2 can be \
         used; missing: a; out of use: b"
    );
    assert_eq!(
        refused(ImportErrorKind::LogMissing {
            missing: names(&["l", "m"]),
            lost_after: Some(TxgId(7)),
            unopened: Vec::new(),
            apart: names(&["m"]),
        }),
        "pool 'tank' cannot be imported: its log device is missing (l, m), and with it writes \
         acknowledged after group 7; written apart from the others: m"
    );
    assert_eq!(
        refused(ImportErrorKind::LogLoss(Box::new(LogLoss {
            frames: vec![(FrameSeq(3), FrameSeq(5))],
            durable: FrameSeq(6),
            places: vec![("l".into(), 4096)],
            missing: Vec::new(),
            devices: names(&["l"]),
            volumes: names(&["tank/v"]),
        }))),
        "pool 'tank' cannot be imported: it has lost acknowledged writes: log frames 3 to 5 were \
         durable (up to 6) and are not there (l at offset 4096); volumes concerned, as far as \
         known: tank/v"
    );
    let not_newest = |missing: &[&str]| {
        refused(ImportErrorKind::RootNotNewest {
            witness: Witness::Device("a".into()),
            missing: names(missing),
            present: names(&["a", "b"]),
        })
    };
    assert!(not_newest(&["c", "d"]).ends_with("; missing: c, d"), "{}", not_newest(&["c"]));
    let lost = not_newest(&[]);
    assert!(lost.ends_with("; the devices here (a, b) have lost them"), "{lost}");
    let error =
        |at: usize| DeviceError::new(&format!("d{at}"), Operation::Open, 0, 0, ErrorKind::Gone);
    let kind = ImportErrorKind::NotFound {
        unreadable: (0..9).map(error).collect(),
        searched: names(&["d0"]),
    };
    let line = refused(kind);
    assert!(line.ends_with("d7: open: the device is gone or was failed and 1 more"), "{line}");
}

#[test]
fn errors_of_commands_name_device_expected_and_found() {
    let device = || "a".to_owned();
    let size =
        CandidateError::TooSmall { device: device(), size_bytes: 1 << 20, needed_bytes: 64 << 20 };
    let space = VolumeError::NoSpace {
        pool: "tank".into(),
        free_bytes: 1 << 20,
        needed_bytes: 2 << 20,
        wanted_for: SpaceFor::Growth,
    };
    let failed = DeviceError::new("a", Operation::Write, 4096, 8192, ErrorKind::NoSpace);
    let commit = CommitError::LabelNotWritten {
        part: LabelPart::Root,
        written: 1,
        last: Some(Box::new(failed.into())),
    };
    let suspended = CommitError::Suspended(commit.clone().into());
    let closed = CloseError::Suspended { pool: "tank".into(), reason: commit.into() };
    let scrub = ScrubError::NotRunning { pool: "tank".into(), error: suspended };
    let lines: [(PoolError, &str); 4] = [
        (AdminError::from(size).into(), "a has 1M, but a device needs 64M at least"),
        (space.into(), "pool 'tank' has 1M free, growing the volume needs 2M"),
        (
            scrub.into(),
            "pool 'tank' cannot be scrubbed: the pool is suspended: the root could be written to 1 \
             devices: a: write of 8192 bytes at offset 4096: no space left",
        ),
        (
            closed.into(),
            "pool 'tank' was suspended and is left as it is: the root could be written to 1 \
             devices: a: write of 8192 bytes at offset 4096: no space left; the next import goes \
             on from its last root and its log",
        ),
    ];
    for (error, line) in lines {
        assert_eq!(error.to_string(), line);
    }
}

#[test]
fn a_pool_that_cannot_write_its_labels_says_what_the_device_said() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        rack.switches.unconfigurable.borrow_mut().insert("a".into());
        pool.set("txg_timeout", "3").await.unwrap_err();
        let stopped = pool.lifecycle.stopped.borrow().clone();
        let Some(SuspendReason::Commit(error)) = stopped else { panic!("{stopped:?}") };
        assert!(matches!(*error, CommitError::LabelNotWritten { last: Some(_), .. }), "{error}");
    });
}
