//! Snapshots and clones against a model that copies whole volumes.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, IoBuf};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::memory;
use super::{expect, names, spec, stamp, volume};
use crate::snapshots::Snapshots;
use crate::spec::{CloneSpec, ImportOptions, VolumeSpec};
use crate::status::ScanPhase;
use crate::{Opener, Pool, VolumeError};

const BLOCK: u64 = 4096;

fn one(name: &str) -> Vec<String> {
    vec![name.to_owned()]
}

async fn pool_with_volume(sparse: bool) -> (Rc<Pool>, Device, Rc<dyn Opener>) {
    let shelf: Rc<dyn Opener> = memory(&["a", "l"], 64 << 20);
    let pool = Pool::create(shelf.clone(), "tank", &spec(Layout::Raid0, &["a"], &["l"])).await;
    let pool = pool.unwrap();
    pool.create_volume(&VolumeSpec { sparse, ..volume(8 << 20) }).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v, shelf)
}

/// Waits until no snapshot is being destroyed any more.
async fn settle(pool: &Pool) {
    while pool.snapshots.has_dying() {
        rt::sleep(Nanos::from_millis(20)).await;
    }
}

#[test]
fn a_snapshot_holds_what_was_answered_before_it() {
    Runtime::simulated(1).block_on(async {
        let (pool, v, shelf) = pool_with_volume(false).await;
        v.write(0, stamp(64 << 10, 1), false).await.unwrap();
        pool.take_snapshots(&one("v@a")).await.unwrap();
        v.write(0, stamp(32 << 10, 2), true).await.unwrap();
        v.discard(48 << 10, 8 << 10, false).await.unwrap();
        v.write(1 << 20, stamp(4096, 3), false).await.unwrap();
        pool.take_snapshots(&one("v@b")).await.unwrap();
        v.write(0, stamp(4096, 4), false).await.unwrap();
        pool.sync().await.unwrap();
        let check = async |pool: &Rc<Pool>| {
            let a = pool.open_snapshot("v@a").unwrap();
            expect(&a, 0, &stamp(64 << 10, 1)).await;
            expect(&a, 1 << 20, &[0; 4096]).await;
            let b = pool.open_snapshot("v@b").unwrap();
            expect(&b, 0, &stamp(32 << 10, 2)).await;
            expect(&b, 32 << 10, &stamp(64 << 10, 1)[32 << 10..48 << 10]).await;
            expect(&b, 48 << 10, &[0; 8192]).await;
            expect(&b, 1 << 20, &stamp(4096, 3)).await;
            assert!(a.geometry().read_only);
            assert!(a.write(0, stamp(4096, 9), false).await.is_err());
            assert!(a.discard(0, 4096, false).await.is_err());
        };
        check(&pool).await;
        let listed = pool.list_snapshots().await;
        let figures: Vec<_> =
            listed.iter().map(|s| (s.name.as_str(), s.referenced_bytes, s.used_bytes)).collect();
        // Of @a: the blocks that were overwritten or trimmed before @b. Of @b: the first block.
        let expected = [("tank/v@a", 64 << 10, 40 << 10), ("tank/v@b", 60 << 10, 4 << 10)];
        assert_eq!(figures, expected);
        let status = pool.get_volume("v").unwrap();
        assert_eq!(status.referenced_bytes, 60 << 10);
        assert_eq!(status.used_by_snapshots_bytes, 44 << 10);
        assert_eq!(status.written_bytes, 4 << 10);
        pool.export().await.unwrap();
        drop((v, pool));
        let paths = names(&["a", "l"]);
        let pool = Pool::import(shelf, &paths, "tank", &ImportOptions::default()).await.unwrap();
        check(&pool).await;
        assert_eq!(pool.list_snapshots().await, listed);
        pool.export().await.unwrap();
    });
}

#[test]
fn commands_on_snapshots_refuse_what_would_lose_data() {
    Runtime::simulated(2).block_on(async {
        let (pool, v, _) = pool_with_volume(true).await;
        v.write(0, stamp(64 << 10, 1), true).await.unwrap();
        pool.take_snapshots(&names(&["v@a", "v@b"])).await.unwrap();
        pool.take_snapshots(&one("v@c")).await.unwrap();
        let fails = |outcome: Result<(), VolumeError>| outcome.unwrap_err().to_string();
        let again = fails(pool.take_snapshots(&one("v@b")).await);
        assert_eq!(again, "snapshot 'tank/v@b' exists");
        assert!(fails(pool.take_snapshots(&one("v@")).await).contains("no name for a snapshot"));
        assert!(fails(pool.take_snapshots(&one("v")).await).contains("no name for a snapshot"));
        assert!(fails(pool.take_snapshots(&one("w@a")).await).contains("no volume 'w'"));
        assert!(fails(pool.destroy_volume("v", false).await).contains("has 3 snapshots"));
        let old = fails(pool.roll_back_volume("v@a", false).await);
        assert!(old.ends_with("newer: v@b, v@c"), "{old}");
        pool.hold_snapshot("v@c", "keep", false).await.unwrap();
        assert!(fails(pool.roll_back_volume("v@a", true).await).contains("held: keep"));
        pool.hold_snapshot("v@c", "keep", true).await.unwrap();
        let w = CloneSpec { name: "w".into(), properties: BTreeMap::new() };
        pool.clone_snapshot("v@b", &w).await.unwrap();
        let cloned = fails(pool.destroy_snapshots(&names(&["v@a", "v@b"])).await);
        assert_eq!(cloned, "snapshot 'tank/v@b' has clones: tank/w");
        assert!(fails(pool.destroy_volume("v", true).await).contains("has clones"));
        assert!(fails(pool.roll_back_volume("v@a", true).await).contains("has clones"));
        assert!(fails(pool.hold_snapshot("v@a", "no tag", false).await).contains("no tag"));
        pool.hold_snapshot("v@a", "keep", false).await.unwrap();
        assert!(fails(pool.hold_snapshot("v@a", "keep", false).await).contains("already"));
        assert!(fails(pool.destroy_snapshots(&one("v@a")).await).contains("held: keep"));
        pool.hold_snapshot("v@a", "keep", true).await.unwrap();
        pool.rename_snapshot("v@a", "z").await.unwrap();
        assert_eq!(pool.snapshots_of_spec("v@%").unwrap(), ["v@z", "v@b", "v@c"]);
        assert_eq!(pool.snapshots_of_spec("v@z%b").unwrap(), ["v@z", "v@b"]);
        assert_eq!(pool.snapshots_of_spec("v@b%").unwrap(), ["v@b", "v@c"]);
        assert_eq!(pool.snapshots_of_spec("v@c,z").unwrap(), ["v@z", "v@c"]);
        assert!(pool.snapshots_of_spec("v@a").is_err());
        assert_eq!(pool.list_snapshots().await.len(), 3, "nothing was destroyed");
        pool.destroy_volume("w", false).await.unwrap();
        pool.destroy_volume("v", true).await.unwrap();
        settle(&pool).await;
        pool.sync().await.unwrap();
        assert_eq!(pool.summary().alloc_bytes, 0);
        pool.export().await.unwrap();
    });
}

// A volume with a reservation can always be overwritten, so a snapshot of it must have room for all
// that it holds.
#[test]
fn a_snapshot_of_a_full_volume_is_refused_where_overwrites_would_not_fit() {
    Runtime::simulated(3).block_on(async {
        let shelf = memory(&["a"], 64 << 20);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let size = pool.summary().size_bytes / 2 / BLOCK * BLOCK + (2 << 20);
        pool.create_volume(&volume(size)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let fill = async |salt: u64| {
            for at in (0..size).step_by(1 << 20) {
                let len = (size - at).min(1 << 20) as usize;
                v.write(at, stamp(len, at + salt), false).await.unwrap();
            }
            v.flush().await.unwrap();
        };
        fill(0).await;
        let refused = pool.take_snapshots(&one("v@a")).await.unwrap_err();
        assert!(matches!(refused, VolumeError::NoSpace { .. }), "{refused}");
        v.discard(0, 8 << 20, false).await.unwrap();
        pool.sync().await.unwrap();
        pool.take_snapshots(&one("v@a")).await.unwrap();
        fill(1).await;
        fill(2).await;
        let a = pool.open_snapshot("v@a").unwrap();
        expect(&a, 8 << 20, &stamp(1 << 20, 8 << 20)).await;
        let again = pool.take_snapshots(&one("v@b")).await.unwrap_err();
        assert!(matches!(again, VolumeError::NoSpace { .. }), "{again}");
        pool.destroy_snapshots(&one("v@a")).await.unwrap();
        settle(&pool).await;
        pool.sync().await.unwrap();
        assert_eq!(pool.summary().alloc_bytes, size);
        pool.export().await.unwrap();
    });
}

// A snapshot lets go of a bounded part of its blocks with each group. A crash between two groups
// finds it half gone.
#[test]
fn a_snapshot_that_is_half_destroyed_goes_on_after_a_crash() {
    const LEAF: u64 = 512 * BLOCK;
    const LEAVES: u64 = 700;
    let shelf: Rc<dyn Opener> = memory(&["a", "l"], 128 << 20);
    let kept = shelf.clone();
    let first = Runtime::simulated(4);
    first.block_on(async move {
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(shelf, "tank", &options).await.unwrap();
        let sparse = VolumeSpec { sparse: true, ..volume(LEAVES * LEAF) };
        pool.create_volume(&sparse).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for name in ["v@old", "v@a", "v@b"] {
            for leaf in 0..LEAVES {
                // The oldest snapshot has every second leaf only.
                if name != "v@old" || leaf % 2 == 0 {
                    let salt = leaf * 8 + u64::from(name.as_bytes()[2]);
                    v.write(leaf * LEAF, stamp(4096, salt), false).await.unwrap();
                }
            }
            pool.take_snapshots(&one(name)).await.unwrap();
        }
        pool.destroy_snapshots(&one("v@a")).await.unwrap();
        // One more group, and it is not the last one that the snapshot needs.
        let before = pool.summary().alloc_bytes;
        pool.sync().await.unwrap();
        assert!(pool.snapshots.has_dying());
        assert!(pool.summary().alloc_bytes < before);
    });
    drop(first);
    Runtime::simulated(5).block_on(async move {
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = Pool::import(kept, &names(&["a", "l"]), "tank", &options).await.unwrap();
        settle(&pool).await;
        pool.sync().await.unwrap();
        let (old, b) = (pool.open_snapshot("v@old").unwrap(), pool.open_snapshot("v@b").unwrap());
        for leaf in 0..LEAVES {
            expect(&b, leaf * LEAF, &stamp(4096, leaf * 8 + u64::from(b'b'))).await;
            match leaf % 2 {
                0 => expect(&old, leaf * LEAF, &stamp(4096, leaf * 8 + u64::from(b'o'))).await,
                _ => expect(&old, leaf * LEAF, &[0; 4096]).await,
            }
        }
        assert_eq!(pool.summary().alloc_bytes, (LEAVES + LEAVES / 2) * BLOCK);
        pool.export().await.unwrap();
    });
}

/// Block by block, the salt of what a version holds.
type Content = BTreeMap<u64, u64>;

/// The model.
#[derive(Clone, Default)]
struct Model {
    volumes: BTreeMap<String, Content>,
    snapshots: BTreeMap<String, Vec<(String, Content)>>,
    origins: BTreeMap<String, String>,
}

const BLOCKS: u64 = 1500;

struct Run {
    pool: Rc<Pool>,
    shelf: Rc<dyn Opener>,
    model: Model,
    salt: u64,
    names: u64,
    /// How many different contents there are, where all volumes are de-duplicated.
    contents: Option<u64>,
}

#[test]
fn a_volume_is_renamed_with_its_snapshots_and_keeps_its_clone() {
    Runtime::simulated(1).block_on(async {
        let (pool, v, shelf) = pool_with_volume(true).await;
        v.write(0, stamp(4096, 1), false).await.unwrap();
        pool.take_snapshots(&one("v@a")).await.unwrap();
        let clone = CloneSpec { name: "c".to_owned(), properties: BTreeMap::new() };
        pool.clone_snapshot("v@a", &clone).await.unwrap();
        let refusals = [("v", "c"), ("v", "v"), ("v", "a@b"), ("v", ""), ("w", "x")];
        for (name, new) in refusals {
            pool.rename_volume(name, new).await.unwrap_err();
        }
        v.write(4096, stamp(4096, 2), true).await.unwrap();
        pool.rename_volume("v", "w").await.unwrap();
        let check = async |pool: &Rc<Pool>| {
            assert!(pool.open_volume("v").is_none() && pool.open_snapshot("v@a").is_none());
            let w = pool.open_volume("w").unwrap();
            expect(&w, 4096, &stamp(4096, 2)).await;
            expect(&pool.open_snapshot("w@a").unwrap(), 0, &stamp(4096, 1)).await;
            assert_eq!(pool.list_snapshots().await[0].name, "tank/w@a");
            assert_eq!(pool.get_volume("c").unwrap().origin.as_deref(), Some("tank/w@a"));
        };
        check(&pool).await;
        pool.export().await.unwrap();
        drop((v, pool));
        let paths = names(&["a", "l"]);
        let pool = Pool::import(shelf, &paths, "tank", &ImportOptions::default()).await.unwrap();
        check(&pool).await;
        pool.rename_volume("c", "v").await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn an_id_is_not_used_again_after_its_snapshot_is_gone() {
    Runtime::simulated(1).block_on(async {
        let (pool, v, shelf) = pool_with_volume(true).await;
        pool.take_snapshots(&one("v@a")).await.unwrap();
        let next = pool.next_id();
        pool.destroy_snapshots(&one("v@a")).await.unwrap();
        settle(&pool).await;
        assert_eq!(pool.next_id(), next);
        // A checkpoint has it, and so has what comes after the import.
        let checkpoint = pool.snapshots.take_records(true);
        assert_eq!(Snapshots::restored(checkpoint).next_id(), next);
        pool.export().await.unwrap();
        drop((v, pool));
        let paths = names(&["a", "l"]);
        let pool = Pool::import(shelf, &paths, "tank", &ImportOptions::default()).await.unwrap();
        assert_eq!(pool.next_id(), next);
        pool.take_snapshots(&one("v@a")).await.unwrap();
        assert_eq!(pool.next_id(), next + 1);
        pool.export().await.unwrap();
    });
}

fn pick<T: Clone>(of: &[T]) -> Option<T> {
    (!of.is_empty()).then(|| of[rt::random_below(of.len() as u64) as usize].clone())
}

impl Run {
    fn volume(&self) -> String {
        pick(&self.model.volumes.keys().cloned().collect::<Vec<_>>()).expect("at least one")
    }

    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    fn properties(&self) -> BTreeMap<String, String> {
        let dedup = self.contents.map(|count| if count % 2 == 0 { "on" } else { "verify" });
        dedup.into_iter().map(|mode| ("dedup".to_owned(), mode.to_owned())).collect()
    }

    async fn write(&mut self) {
        let name = self.volume();
        let device = self.pool.open_volume(&name).unwrap();
        for _ in 0..1 + rt::random_below(40) {
            let blocks = 1 + if rt::random_below(3) == 0 { rt::random_below(100) } else { 0 };
            let first = rt::random_below(BLOCKS - blocks);
            let content = self.model.volumes.get_mut(&name).unwrap();
            if rt::random_below(6) == 0 {
                device.discard(first * BLOCK, blocks * BLOCK, false).await.unwrap();
                content.retain(|block, _| !(first..first + blocks).contains(block));
                continue;
            }
            let salts: Vec<u64> = match self.contents {
                None => (0..blocks).map(|i| self.salt + i).collect(),
                Some(count) => {
                    let first = rt::random_below(count);
                    (0..blocks).map(|i| 1 << 40 | ((first + i) % count)).collect()
                }
            };
            self.salt += blocks;
            let data: Vec<u8> =
                salts.iter().flat_map(|salt| stamp(BLOCK as usize, *salt).to_vec()).collect();
            let fua = rt::random_below(4) == 0;
            let data = IoBuf::copy_of(&data).freeze();
            match device.write(first * BLOCK, data, fua).await {
                Ok(()) => content.extend((first..).zip(salts)),
                Err(error) => assert!(error.kind == ErrorKind::NoSpace, "{error}"),
            }
        }
    }

    /// A volume that fills most of the pool is overwritten, so that the cleaner has to move what
    /// snapshots hold.
    async fn write_ballast(&self, blocks: u64) {
        let device = self.pool.open_volume("ballast").unwrap();
        let size_bytes = device.geometry().size_bytes;
        for at in 0..blocks {
            let block = match blocks * BLOCK >= size_bytes {
                true => at,
                false => rt::random_below(size_bytes / BLOCK),
            };
            device.write(block * BLOCK, stamp(BLOCK as usize, block), false).await.unwrap();
        }
    }

    fn is_origin(&self, snapshot: &str) -> bool {
        self.model.origins.values().any(|origin| origin == snapshot)
    }

    async fn roll_back(&mut self, name: String, snapshots: &[(String, Content)]) {
        let Some(at) =
            (!snapshots.is_empty()).then(|| rt::random_below(snapshots.len() as u64) as usize)
        else {
            return;
        };
        if snapshots[at + 1..].iter().any(|(newer, _)| self.is_origin(newer)) {
            return;
        }
        let (snapshot, content) = snapshots[at].clone();
        match self.pool.roll_back_volume(&snapshot, true).await {
            Ok(()) => {}
            Err(VolumeError::NoSpace { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        self.model.volumes.insert(name.clone(), content);
        self.model.snapshots.get_mut(&name).unwrap().truncate(at + 1);
    }

    async fn promote(&mut self, name: String) {
        let Some(origin) = self.model.origins.get(&name).cloned() else {
            let refused = self.pool.promote_volume(&name).await;
            assert!(matches!(refused, Err(VolumeError::NotAClone { .. })), "{refused:?}");
            return;
        };
        self.pool.promote_volume(&name).await.unwrap();
        let (parent, _) = origin.split_once('@').unwrap();
        let renamed = |snapshot: &str| snapshot.replace(&format!("{parent}@"), &format!("{name}@"));
        let old = self.model.snapshots.get_mut(parent).unwrap();
        let at = old.iter().position(|(snapshot, _)| *snapshot == origin).unwrap();
        let moved: Vec<_> = old.drain(..=at).map(|(s, content)| (renamed(&s), content)).collect();
        let names: Vec<String> = moved.iter().map(|(snapshot, _)| snapshot.clone()).collect();
        self.model.snapshots.entry(name.clone()).or_default().splice(0..0, moved);
        let of_parent = self.model.origins.insert(parent.to_owned(), renamed(&origin));
        match of_parent {
            Some(older) => self.model.origins.insert(name.clone(), older),
            None => self.model.origins.remove(&name),
        };
        for other in self.model.origins.values_mut() {
            let new = renamed(other);
            if names.contains(&new) {
                *other = new;
            }
        }
    }

    async fn step(&mut self) {
        self.write_ballast(500).await;
        let name = self.volume();
        let snapshots = self.model.snapshots.get(&name).cloned().unwrap_or_default();
        match rt::random_below(23) {
            0..=8 => self.write().await,
            9..=11 => {
                let snapshot = format!("{name}@{}", self.name());
                match self.pool.take_snapshots(&one(&snapshot)).await {
                    Ok(()) => {}
                    Err(VolumeError::NoSpace { .. }) => return,
                    Err(error) => panic!("{error}"),
                }
                let content = self.model.volumes[&name].clone();
                self.model.snapshots.entry(name).or_default().push((snapshot, content));
            }
            12..=14 => {
                let Some((snapshot, _)) = pick(&snapshots) else { return };
                if self.is_origin(&snapshot) {
                    self.pool.destroy_snapshots(&one(&snapshot)).await.unwrap_err();
                    return;
                }
                self.pool.destroy_snapshots(&one(&snapshot)).await.unwrap();
                self.model.snapshots.get_mut(&name).unwrap().retain(|(s, _)| *s != snapshot);
            }
            15 => {
                let Some((snapshot, content)) = pick(&snapshots) else { return };
                if self.model.volumes.len() >= 4 {
                    return;
                }
                let new = format!("c{}", self.name());
                let spec = CloneSpec { name: new.clone(), properties: self.properties() };
                self.pool.clone_snapshot(&snapshot, &spec).await.unwrap();
                self.model.volumes.insert(new.clone(), content);
                self.model.origins.insert(new, snapshot);
            }
            16 => self.roll_back(name, &snapshots).await,
            17 => {
                let has_clones = snapshots.iter().any(|(snapshot, _)| self.is_origin(snapshot));
                if self.model.volumes.len() == 1 || has_clones {
                    return;
                }
                self.pool.destroy_volume(&name, true).await.unwrap();
                self.model.volumes.remove(&name);
                self.model.snapshots.remove(&name);
                self.model.origins.remove(&name);
            }
            18 => self.pool.sync().await.unwrap(),
            19..=21 => self.promote(name).await,
            _ => {
                self.pool.export().await.unwrap();
                let (paths, options) = (names(&["a", "b", "c", "l"]), ImportOptions::default());
                let pool = Pool::import(self.shelf.clone(), &paths, "tank", &options).await;
                self.pool = pool.unwrap();
            }
        }
    }

    async fn check(&self) {
        for (name, content) in &self.model.volumes {
            self.check_one(name, &self.pool.open_volume(name).unwrap(), content).await;
            for (snapshot, content) in self.model.snapshots.get(name).into_iter().flatten() {
                let device = self.pool.open_snapshot(snapshot).unwrap();
                self.check_one(snapshot, &device, content).await;
            }
        }
    }

    async fn check_one(&self, name: &str, device: &Device, content: &Content) {
        let got = device.read(0, IoBuf::zeroed((BLOCKS * BLOCK) as usize)).await.unwrap();
        for (block, got) in (0..).zip(got.chunks(BLOCK as usize)) {
            let is_right = match content.get(&block) {
                Some(salt) => got[..] == stamp(BLOCK as usize, *salt)[..],
                None => got.iter().all(|byte| *byte == 0),
            };
            assert!(is_right, "block {block} of {name}");
        }
        let mut data_bytes = 0;
        for part in device.allocation(0, BLOCKS * BLOCK).await.unwrap() {
            data_bytes += if part.hole { 0 } else { part.len_bytes };
        }
        assert_eq!(data_bytes, content.len() as u64 * BLOCK, "what {name} has allocated");
    }

    /// Every block that is allocated belongs to some version, and a scrub finds each of them good.
    async fn check_space(&self) {
        settle(&self.pool).await;
        self.pool.sync().await.unwrap();
        let volumes = self.model.volumes.values();
        let snapshots = self.model.snapshots.values().flatten().map(|(_, content)| content);
        // Alike are blocks of versions at the same place; de-duplicated, those of any place.
        let place = |block: u64| if self.contents.is_some() { 0 } else { block };
        let salts: std::collections::BTreeSet<(u64, u64)> =
            volumes.chain(snapshots).flat_map(|c| c.iter().map(|(b, s)| (place(*b), *s))).collect();
        let ballast_bytes = self.pool.get_volume("ballast").unwrap().size_bytes;
        let held_bytes = self.pool.summary().alloc_bytes - ballast_bytes;
        assert_eq!(held_bytes, salts.len() as u64 * BLOCK);
        self.pool.scrub().await.unwrap();
        let scan = loop {
            rt::sleep(Nanos::from_millis(100)).await;
            let scan = self.pool.status().scan.unwrap();
            if scan.state != ScanPhase::InProgress {
                break scan;
            }
        };
        assert_eq!((scan.errors, scan.repaired_bytes), (0, 0));
    }
}

fn run_of(seed: u64, steps: usize, contents: Option<u64>) {
    let shelf: Rc<dyn Opener> = memory(&["a", "b", "c", "l"], 96 << 20);
    let (mut model, mut salt, mut names_used) = (Model::default(), 0, 0);
    let mut cleaned = 0;
    // Between two parts the process dies: what was answered by a flush must be there.
    for part in 0..3u64 {
        let kept = shelf.clone();
        let world = Runtime::simulated(seed * 10 + part);
        let state = (model, salt, names_used);
        let cleaned_now;
        (model, salt, names_used, cleaned_now) = world.block_on(async move {
            let paths = names(&["a", "b", "c", "l"]);
            let pool = match part {
                0 => {
                    let layout = if seed % 2 == 0 { Layout::Raidz1 } else { Layout::Mirror };
                    let mut spec = spec(layout, &["a", "b", "c"], &["l"]);
                    spec.properties.insert("dirty_limit".into(), "4M".into());
                    Pool::create(kept.clone(), "tank", &spec).await.unwrap()
                }
                _ => {
                    let options = ImportOptions { force: true, ..ImportOptions::default() };
                    Pool::import(kept.clone(), &paths, "tank", &options).await.unwrap()
                }
            };
            let (model, salt, names) = state;
            let mut run = Run { pool, shelf: kept, model, salt, names, contents };
            if part == 0 {
                let sparse = seed % 3 == 0 || contents.is_some();
                let properties = run.properties();
                let spec = VolumeSpec { sparse, properties, ..volume(BLOCKS * BLOCK) };
                run.pool.create_volume(&spec).await.unwrap();
                run.model.volumes.insert("v".into(), BTreeMap::new());
                let size_bytes = run.pool.summary().available_bytes * 3 / 5 / BLOCK * BLOCK;
                let ballast = VolumeSpec { name: "ballast".into(), ..volume(size_bytes) };
                run.pool.create_volume(&ballast).await.unwrap();
                run.write_ballast(size_bytes / BLOCK).await;
            }
            run.check().await;
            for step in 0..steps {
                run.step().await;
                if step % 8 == 7 {
                    run.check().await;
                }
            }
            run.check_space().await;
            run.check().await;
            for _ in 0..5 {
                run.write().await;
            }
            // The process dies while a snapshot lets go of its blocks.
            for _ in 0..4 {
                run.step().await;
            }
            let cleaned = run.pool.stats().segments.cleaned;
            for name in run.model.volumes.keys() {
                run.pool.open_volume(name).unwrap().flush().await.unwrap();
            }
            (run.model, run.salt, run.names, cleaned)
        });
        drop(world);
        cleaned += cleaned_now;
    }
    assert!(cleaned > 0, "the cleaner had nothing to do with seed {seed}");
}

#[test]
fn versions_of_volumes_hold_what_they_held() {
    for seed in 1..=8 {
        run_of(seed, 40, None);
    }
}

#[test]
fn contents_that_are_alike_are_stored_once() {
    // Few contents that come again and again, and many that often go.
    for (seed, contents) in [(1, 40), (2, 41), (4, 2001), (5, 800)] {
        run_of(seed, 30, Some(contents));
    }
}
