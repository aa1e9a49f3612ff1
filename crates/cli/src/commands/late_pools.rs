//! Late pools: pools that a server could not open at its start, and opens later.
//!
//! What enters: known pools. What leaves: open pools of the server's set, each with a line of the
//! log. What always holds: a pool is tried once its devices have stopped coming, because an import
//! with a part of them leaves the others behind. Who calls: `forebay serve` of all known pools.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_rt as rt;
use forebay_units::Nanos;

use crate::devices::{answering, is_elsewhere};
use crate::failure::ErrorCode;
use crate::log;
use crate::path_probe::probe_each;
use crate::pool_access::{KNOWN_POOL_OPTIONS, import_known};
use crate::pools::PoolSet;
use crate::state::KnownPool;

/// Between two looks at the devices.
const LOOK_INTERVAL: Nanos = Nanos::from_secs(10);
/// Looks after which a pool is tried again although its devices have not changed: another machine
/// may have had it. One that a process of this machine had is tried at the next look, and so is
/// each pool after the server's start, where that is not told apart.
const LOOKS_WITHOUT_CHANGE: u32 = 12;

/// A pool that is not open yet.
struct Late {
    pool: KnownPool,
    /// The devices that were there at the last look.
    seen: Vec<String>,
    /// Those that were there when it was last tried.
    tried: Vec<String>,
    looks: u32,
}

/// Opens `pools` in `set` when their devices are there. Ends when all of them are open, or known
/// no more.
pub async fn open_late(set: Rc<PoolSet>, pools: Vec<KnownPool>) {
    let mut late = Vec::new();
    for pool in pools {
        let seen = present(&pool).await;
        late.push(Late { pool, tried: seen.clone(), seen, looks: LOOKS_WITHOUT_CHANGE });
    }
    while !late.is_empty() {
        rt::sleep(LOOK_INTERVAL).await;
        for pool in std::mem::take(&mut late) {
            late.extend(look_again(&set, pool).await);
        }
    }
}

/// Opens the pool if it can be opened by now; otherwise returns it.
async fn look_again(set: &PoolSet, late: Late) -> Option<Late> {
    let Late { pool, seen, tried, looks } = late;
    // A command may have imported it meanwhile, or exported it.
    let pool = match set.as_known_now(&pool).await {
        Ok(now) => now?,
        Err(_) => pool,
    };
    if set.pools().iter().any(|open| open.guid() == pool.guid) {
        return None;
    }
    let there = present(&pool).await;
    // The import would wait for those, and commands for the import.
    let is_reachable = pool.devices.iter().all(|path| !is_elsewhere(path) || there.contains(path));
    let is_steady = there == seen && is_reachable && !there.is_empty();
    if !is_steady || there == tried && looks < LOOKS_WITHOUT_CHANGE {
        return Some(Late { pool, seen: there, tried, looks: looks + 1 });
    }
    match import_known(set, &pool, &KNOWN_POOL_OPTIONS, Nanos::ZERO).await {
        Ok(()) => {
            log::notice(&format!("pool '{}' can be opened now, and is served", pool.name));
            None
        }
        Err(failure) => {
            let is_held = failure.code == ErrorCode::DeviceInUse;
            let looks = if is_held { LOOKS_WITHOUT_CHANGE } else { 0 };
            Some(Late { pool, seen: there.clone(), tried: there, looks })
        }
    }
}

/// The devices of a pool that are there, and answer.
async fn present(pool: &KnownPool) -> Vec<String> {
    let (elsewhere, here): (Vec<String>, Vec<String>) =
        pool.devices.iter().cloned().partition(|path| is_elsewhere(path));
    let here = here.into_iter().map(PathBuf::from).collect();
    let found = probe_each(here, Path::exists).await.into_iter();
    let found = found.filter(|(_, exists)| *exists == Ok(true));
    let mut there: Vec<String> =
        found.filter_map(|(path, _)| Some(path.to_str()?.to_owned())).collect();
    there.extend(answering(&elsewhere).await);
    there
}

#[cfg(test)]
mod tests {
    use forebay_device::{Device, MemoryDevice};
    use forebay_pool::spec::{GroupSpec, PoolSpec};
    use forebay_pool::{OpenWith, Opener};
    use forebay_rt::Runtime;
    use forebay_testkit::Shelf;
    use forebay_units::Layout;

    use super::*;
    use crate::control::{Action, PROTOCOL_VERSION, Request};
    use crate::state::StateDir;

    /// A folder that goes with the test.
    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    // An import with the first of them would leave the others behind.
    #[test]
    fn a_pool_is_opened_when_no_more_of_its_devices_have_come_since_the_last_look() {
        let name = format!("forebay-late-pools-{}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        let state = StateDir::open_at(folder.0.join("state")).unwrap();
        let files = ["a", "b"].map(|name| folder.0.join(name));
        Runtime::simulated(1).block_on(async move {
            let paths = files.each_ref().map(|path| path.to_str().unwrap().to_owned());
            // What is at the paths is in memory; the folders only say that it is there.
            let shelf = Shelf::new(
                paths.iter().map(|path| -> Device { Rc::new(MemoryDevice::new(path, 64 << 20)) }),
            );
            let opener = || -> Rc<dyn Opener> {
                let shelf = shelf.clone();
                OpenWith::new(1, move |name| shelf.open_alone(name))
            };
            let first = PoolSet::new(opener(), state.clone(), None);
            let group = GroupSpec { layout: Layout::Mirror, devices: paths.to_vec() };
            let spec = PoolSpec { groups: vec![group], ..PoolSpec::default() };
            let (pool, typed, action) = ("tank".to_owned(), String::new(), Action::Create { spec });
            let create = Request { version: PROTOCOL_VERSION, pool, typed, action };
            first.perform(&create).await.unwrap();
            first.close().await.unwrap();
            let pool = state.known_pools().unwrap().remove(0);
            let set = PoolSet::new(opener(), state, None);
            let mut late = Late { pool, seen: Vec::new(), tried: Vec::new(), looks: 0 };
            for file in &files {
                std::fs::create_dir(file).unwrap();
                late = look_again(&set, late).await.expect("more may come");
                assert!(set.pools().is_empty());
            }
            assert!(look_again(&set, late).await.is_none());
            assert_eq!(set.pools().len(), 1);
            set.close().await.unwrap();
        });
    }
}
