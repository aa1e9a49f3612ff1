//! Rewinds to roots before the newest: what of them is still there, and what follows from them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::Device;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::spec::ImportOptions;
use crate::status::ScanPhase;
use crate::{Opener, Pool};

const DEVICES: &[&str] = &["a", "b", "l"];
const SIZE: u64 = 160 << 20;
/// Blocks of the volume are written in parts of so many bytes.
const PART: u64 = 128 << 10;
const PARTS: u64 = 32;

/// The salt of each part, by the root that brought it.
type Versions = Rc<RefCell<BTreeMap<u64, Vec<u64>>>>;

async fn import(opener: Rc<dyn Opener>, rewind_groups: u64) -> Rc<Pool> {
    let options = ImportOptions { rewind_groups, ..ImportOptions::default() };
    Pool::import(opener, &names(DEVICES), "tank", &options).await.unwrap()
}

async fn holds(v: &Device, salts: &[u64]) {
    for (part, salt) in (0..).zip(salts) {
        let data =
            if *salt == 0 { vec![0; PART as usize] } else { stamp(PART as usize, *salt).to_vec() };
        expect(v, part * PART, &data).await;
    }
}

/// Overwrites parts and commits, `rounds` times, then leaves the pool alone for a while, and lets
/// the power fail `changes` changes after another group was begun.
fn left_behind(rack: &Rc<Rack>, seed: u64, changes: u64) -> (Versions, Vec<u64>) {
    let (opener, mine) = (rack.host(1), rack.clone());
    let versions = Versions::default();
    let told = versions.clone();
    let runtime = Runtime::simulated(seed);
    let salts = runtime.block_on(async move {
        let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&volume(PART * PARTS)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let mut salts = vec![0; PARTS as usize];
        let mut write = async |salt: u64, at: u64| {
            salts[at as usize] = salt;
            v.write(at * PART, stamp(PART as usize, salt), false).await.unwrap();
            salts.clone()
        };
        for round in 1..=6 {
            for turn in 0..PARTS {
                let at = if round == 1 { turn } else { rt::random_below(PARTS) };
                let salts = write(round * 1000 + turn, at).await;
                told.borrow_mut().insert(u64::MAX, salts);
            }
            pool.sync().await.unwrap();
            let salts = told.borrow_mut().remove(&u64::MAX).expect("just written");
            told.borrow_mut().insert(pool.sync.commit.get().0, salts);
        }
        assert!(!pool.is_tight(&*pool.writers.lock().await), "the root before is not kept");
        // Freed segments are discarded.
        rt::sleep(Nanos::from_secs(rt::random_below(3))).await;
        mine.switches.power.set(Some(changes));
        for turn in 0..PARTS {
            write(9000 + turn, turn).await;
        }
        let _ = pool.sync().await;
        told.borrow().last_key_value().map(|(_, salts)| salts.clone()).expect("six rounds")
    });
    drop(runtime);
    rack.switches.power.set(None);
    (versions, salts)
}

// The next group takes free segments, and an idle pool discards them.
#[test]
fn the_root_before_the_newest_is_whole_while_there_is_space() {
    for changes in [0, 1, 3, 9, 30, 80, 150] {
        let rack = Rack::new(DEVICES, SIZE);
        let (versions, newest) = left_behind(&rack, changes + 1, changes);
        Runtime::simulated(changes + 1000).block_on(async move {
            let label = crate::labels::read_label(&rack.device("a")).await;
            let before = label.roots[1].commit.0;
            let versions = versions.take();
            let (_, salts) = versions.range(..=before).next_back().expect("a version");
            assert!(changes > 0 || *salts != newest, "the last round changed something");
            let pool = import(rack.host(1), 1).await;
            let v = pool.open_volume("v").unwrap();
            holds(&v, salts).await;
            pool.scrub().await.unwrap();
            while pool.scan_status().unwrap().state == ScanPhase::InProgress {
                rt::sleep(Nanos::from_millis(100)).await;
            }
            let scan = pool.scan_status().unwrap();
            assert_eq!((scan.errors, scan.repaired_bytes), (0, 0), "cut after {changes}: {scan:?}");
            v.write(0, stamp(PART as usize, 77), true).await.unwrap();
            drop((v, pool));
            // What the rewind left behind never counts again.
            let pool = import(rack.host(1), 0).await;
            let v = pool.open_volume("v").unwrap();
            let mut salts = salts.clone();
            salts[0] = 77;
            holds(&v, &salts).await;
            drop(v);
            pool.export().await.unwrap();
        });
    }
}
