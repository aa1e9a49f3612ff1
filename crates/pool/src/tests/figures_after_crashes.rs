//! Figures of volumes, snapshots and space: what a running pool shows after a command is what the
//! next import counts from the devices.

use std::rc::Rc;

use forebay_rt::{self as rt, Runtime};
use forebay_units::Layout;

use super::rack::Rack;
use super::{names, spec, stamp, volume};
use crate::Pool;
use crate::spec::{CloneSpec, ImportOptions, VolumeSpec};
use crate::status::{PoolSummary, SnapshotStatus, VolumeStatus};

const DEVICES: &[&str] = &["a", "b", "l"];
const NAMES: [&str; 4] = ["u", "v", "w", "x"];
const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

type Figures = (PoolSummary, Vec<VolumeStatus>, Vec<SnapshotStatus>);

/// What the pool shows when nothing is on its way.
async fn figures(pool: &Rc<Pool>) -> Figures {
    pool.sync().await.unwrap();
    while pool.snapshots.has_dying() {
        pool.sync().await.unwrap();
    }
    let mut volumes = pool.volumes();
    // It is a sample.
    volumes.iter_mut().for_each(|volume| volume.compress_percent = 0);
    (pool.summary(), volumes, pool.list_snapshots().await)
}

fn any<T: Clone>(of: &[T]) -> Option<T> {
    (!of.is_empty()).then(|| of[rt::random_below(of.len() as u64) as usize].clone())
}

/// The part after the pool's name.
fn short(name: &str) -> &str {
    name.split_once('/').expect("the pool's name is first").1
}

fn any_volume(pool: &Pool) -> String {
    let all = pool.volumes();
    any(&all).map_or_else(|| "v".to_owned(), |volume| short(&volume.name).to_owned())
}

async fn any_snapshot(pool: &Pool) -> String {
    let all = pool.list_snapshots().await;
    any(&all).map_or_else(|| "v@none".to_owned(), |snapshot| short(&snapshot.name).to_owned())
}

/// Changes some blocks of a volume.
async fn change(pool: &Rc<Pool>, salt: u64) -> bool {
    let name = any_volume(pool);
    let Some(v) = pool.open_volume(&name) else { return false };
    let blocks = v.geometry().size_bytes / BLOCK;
    let mut is_done = false;
    for turn in 0..1 + rt::random_below(60) {
        let at = rt::random_below(blocks);
        let count = (1 + rt::random_below(16)).min(blocks - at);
        let len = (count * BLOCK) as usize;
        let outcome = match turn % 5 {
            4 => v.discard(at * BLOCK, count * BLOCK, false).await,
            // Some contents are alike.
            _ => v.write(at * BLOCK, stamp(len, salt % 3), turn % 2 == 0).await,
        };
        is_done |= outcome.is_ok();
    }
    is_done
}

/// Runs one command. Returns which, and whether it was done.
async fn command(pool: &Rc<Pool>, salt: u64) -> (u64, bool) {
    let kind = rt::random_below(24);
    let free_name = NAMES[rt::random_below(4) as usize];
    let size_bytes = (1 + rt::random_below(4)) * MIB;
    let is_done = match kind {
        0 | 1 => {
            let mut new = VolumeSpec { name: free_name.into(), ..volume(size_bytes) };
            new.sparse = rt::random_below(2) == 0;
            let property = ["dedup", "compression", "comment"][rt::random_below(3) as usize];
            let value = if property == "compression" { "lz4" } else { "on" };
            if new.sparse {
                new.properties.insert(property.to_owned(), value.to_owned());
            }
            pool.create_volume(&new).await.is_ok()
        }
        2..=5 => {
            let name = format!("{}@{salt}", any_volume(pool));
            pool.take_snapshots(&[name]).await.is_ok()
        }
        6 => pool.destroy_snapshots(&[any_snapshot(pool).await]).await.is_ok(),
        7 => pool.destroy_volume(&any_volume(pool), rt::random_below(2) == 0).await.is_ok(),
        8 => pool.roll_back_volume(&any_snapshot(pool).await, true).await.is_ok(),
        9 => {
            let clone = CloneSpec { name: free_name.into(), properties: Default::default() };
            pool.clone_snapshot(&any_snapshot(pool).await, &clone).await.is_ok()
        }
        10 => {
            let clones: Vec<_> =
                pool.volumes().into_iter().filter(|v| v.origin.is_some()).collect();
            match any(&clones) {
                Some(clone) => pool.promote_volume(short(&clone.name)).await.is_ok(),
                None => false,
            }
        }
        11 => pool.resize_volume(&any_volume(pool), size_bytes, true).await.is_ok(),
        12 | 13 => {
            let value = ["auto", "none"][rt::random_below(2) as usize];
            pool.set_volume(&any_volume(pool), "reservation", value).await.is_ok()
        }
        14 => pool.rename_volume(&any_volume(pool), free_name).await.is_ok(),
        15 => pool.rename_snapshot(&any_snapshot(pool).await, &format!("r{salt}")).await.is_ok(),
        16 | 17 => {
            let release = rt::random_below(2) == 0;
            pool.hold_snapshot(&any_snapshot(pool).await, "tag", release).await.is_ok()
        }
        _ => change(pool, salt).await,
    };
    (kind, is_done)
}

/// Runs commands, each followed by a crash. Returns how often each was done.
fn commands_and_crashes(seed: u64) -> [u64; 24] {
    let rack = Rack::new(DEVICES, 64 << 20);
    let mut done = [0; 24];
    let mut before: Option<Figures> = None;
    for step in 0..60 {
        let (mine, told) = (rack.clone(), before.take());
        let runtime = Runtime::simulated(seed * 1000 + step);
        let (now, kind, is_done) = runtime.block_on(async move {
            let pool = match step {
                0 => {
                    let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
                    Pool::create(mine.host(1), "tank", &options).await.unwrap()
                }
                _ => {
                    let (paths, options) = (names(DEVICES), ImportOptions::default());
                    let imported = Pool::import(mine.host(1), &paths, "tank", &options);
                    imported.await.unwrap()
                }
            };
            if let Some(told) = told {
                assert_eq!(figures(&pool).await, told, "seed {seed}, after step {step}");
            }
            // Beside what was written before, so that it finds something on its way.
            change(&pool, step).await;
            let (kind, is_done) = command(&pool, step).await;
            change(&pool, step + 1).await;
            (figures(&pool).await, kind, is_done)
        });
        done[kind as usize] += u64::from(is_done);
        before = Some(now);
        // A crash.
        drop(runtime);
    }
    done
}

#[test]
fn figures_of_a_running_pool_are_those_that_an_import_counts() {
    let mut done = [0; 24];
    for seed in 0..8 {
        for (sum, count) in done.iter_mut().zip(commands_and_crashes(seed)) {
            *sum += count;
        }
    }
    assert!(done.iter().all(|count| *count > 0), "{done:?}");
}
