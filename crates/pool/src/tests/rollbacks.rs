//! Devices that come back with what they held some time ago.

use std::rc::Rc;

use forebay_device::{IoBuf, IoBytes};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::imports::{ALL, SIZE, check, forced, import, make, refused, until_crash, write};
use super::rack::Rack;
use super::{expect, stamp};
use crate::spec::ImportOptions;
use crate::{ImportErrorKind, Pool, Witness};

const CHUNK: usize = 1 << 20;
const DATA: [&str; 3] = ["a", "b", "c"];

/// What some devices held at one time.
type Copies = Vec<(String, Vec<IoBytes>)>;

async fn copies(rack: &Rc<Rack>, names: &[&str]) -> Copies {
    let mut copies = Copies::new();
    for name in names {
        let device = rack.device(name);
        let mut chunks = Vec::new();
        for at in (0..SIZE).step_by(CHUNK) {
            chunks.push(device.read(at, IoBuf::zeroed(CHUNK)).await.unwrap().freeze());
        }
        copies.push(((*name).to_owned(), chunks));
    }
    copies
}

async fn put_back(rack: &Rc<Rack>, copies: &Copies) {
    for (name, chunks) in copies {
        let device = rack.device(name);
        for (at, chunk) in (0..SIZE).step_by(CHUNK).zip(chunks) {
            device.write(at, chunk.clone(), true).await.unwrap();
        }
    }
}

/// A write that only a commit makes durable.
async fn plain_write(pool: &Rc<Pool>, salt: u64) {
    let volume = pool.open_volume("v").unwrap();
    volume.write(4096, stamp(4096, salt), false).await.unwrap();
}

/// What happens after the data devices were copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// A commit, a durable write, and a crash.
    Write,
    /// A commit and nothing else, and a crash.
    Commit,
    /// A commit, a durable write, and an export.
    Export,
    /// An export, an import, a durable write, and a crash.
    Import,
}

/// Runs a pool whose data devices are copied in the middle. Returns the copies.
fn run_past_copies(rack: &Rc<Rack>, then: Then) -> Copies {
    let rack = rack.clone();
    Runtime::simulated(1).block_on(async move {
        let mut pool = make(&rack, Layout::Raidz1, &DATA, &["l", "m"]).await;
        plain_write(&pool, 5).await;
        pool.sync().await.unwrap();
        if then == Then::Import {
            pool.export().await.unwrap();
        }
        let copies = copies(&rack, &DATA).await;
        if then == Then::Import {
            drop(pool);
            pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        }
        plain_write(&pool, 6).await;
        pool.sync().await.unwrap();
        if then == Then::Commit {
            rt::sleep(Nanos::from_millis(50)).await;
        } else {
            write(&pool, 2).await;
        }
        if then == Then::Export {
            pool.export().await.unwrap();
        }
        copies
    })
}

#[test]
fn data_devices_that_are_older_than_the_log_are_refused() {
    for then in [Then::Write, Then::Commit, Then::Export, Then::Import] {
        let rack = Rack::new(&ALL, SIZE);
        let old = run_past_copies(&rack, then);
        let after = rack.clone();
        Runtime::simulated(2).block_on(async move {
            put_back(&after, &old).await;
            let kind = refused(&after, 1, &ImportOptions::default()).await;
            let ImportErrorKind::RootNotNewest { witness, .. } = &kind else {
                panic!("{then:?}: {kind}")
            };
            let is_log = match witness {
                Witness::Log { committed, root } => committed > root,
                Witness::Device(device) => ALL[4..].contains(&device.as_str()),
                _ => false,
            };
            assert!(is_log, "{then:?}: {kind}");
            // By force the old state is imported, without the later write.
            let pool = import(&after, 1, &forced()).await.unwrap();
            check(&pool, 1).await;
            expect(&pool.open_volume("v").unwrap(), 4096, &stamp(4096, 5)).await;
            write(&pool, 3).await;
        });
        // Then it is a pool like any other.
        Runtime::simulated(3).block_on(async move {
            let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
            check(&pool, 3).await;
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn log_devices_that_have_forgotten_their_last_frames_are_refused() {
    for (witness, pause) in [("idle", 150), ("second", 1100), ("always", 0)] {
        let rack = Rack::new(&ALL, SIZE);
        let before = rack.clone();
        let old = Runtime::simulated(1).block_on(async move {
            let pool = make(&before, Layout::Raidz1, &DATA, &["l", "m"]).await;
            pool.set("log_witness", witness).await.unwrap();
            pool.sync().await.unwrap();
            rt::sleep(Nanos::from_secs(2)).await;
            let old = copies(&before, &["l", "m"]).await;
            write(&pool, 2).await;
            rt::sleep(Nanos::from_millis(pause)).await;
            old
        });
        Runtime::simulated(2).block_on(async move {
            put_back(&rack, &old).await;
            let kind = refused(&rack, 1, &ImportOptions::default()).await;
            assert_kind!(kind, LogLoss(_));
            let accepted = ImportOptions { accept_log_loss: true, ..Default::default() };
            let pool = import(&rack, 1, &accepted).await.unwrap();
            check(&pool, 1).await;
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn damage_at_the_end_of_an_idle_log_is_a_loss() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Raidz1, &DATA, &["l"]).await;
        rt::sleep(Nanos::from_secs(2)).await;
        let empty = copies(&mine, &["l"]).await;
        // In time for the closing frame and too early for the next mark.
        write(&pool, 2).await;
        rt::sleep(Nanos::from_millis(20)).await;
        let full = copies(&mine, &["l"]).await;
        let blocks = |chunks: &Copies| -> Vec<Vec<u8>> {
            chunks[0].1.iter().flat_map(|c| c.chunks(4096).map(<[u8]>::to_vec)).collect()
        };
        let (empty, full) = (blocks(&empty), blocks(&full));
        let changed: Vec<usize> =
            (256..empty.len() - 256).filter(|at| empty[*at] != full[*at]).collect();
        // Two blocks of the last frame, and the closing frame behind it.
        assert_eq!(changed.len(), 3, "{changed:?}");
        let zeros = IoBuf::zeroed(4096).freeze();
        mine.device("l").write(changed[1] as u64 * 4096, zeros, true).await.unwrap();
    });
    Runtime::simulated(2).block_on(async move {
        assert_kind!(refused(&rack, 1, &ImportOptions::default()).await, LogLoss(_));
    });
}

// A device has two marks, of which the one that was written last lies in either place.
#[test]
fn of_the_marks_of_a_log_the_one_that_is_furthest_counts() {
    for marks in 1..=4 {
        let rack = Rack::new(&ALL, SIZE);
        let before = rack.clone();
        let old = Runtime::simulated(1).block_on(async move {
            let pool = make(&before, Layout::Raid0, &["a"], &["l"]).await;
            pool.set("log_witness", "always").await.unwrap();
            for salt in 1..=marks {
                write(&pool, salt).await;
            }
            let old = copies(&before, &["l"]).await;
            write(&pool, 9).await;
            old
        });
        Runtime::simulated(2).block_on(async move {
            put_back(&rack, &old).await;
            assert_kind!(refused(&rack, 1, &ImportOptions::default()).await, LogLoss(_));
        });
    }
}
