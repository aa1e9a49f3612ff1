//! The order of a commit's steps, and waits for commits, on devices that take a while.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, IoBytes, Operation};
use forebay_format::label::{
    LABEL_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SLOTS, body_range,
    label_offsets,
};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos, TxgId};

use super::rack::{memory, paced, scripted};
use super::{spec, stamp, volume};
use crate::Pool;
use crate::spec::VolumeSpec;

const SIZE: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const ROOTS: Range<u64> =
    SUPERBLOCK_OFFSET_BYTES..SUPERBLOCK_OFFSET_BYTES + SUPERBLOCK_SLOTS * SUPERBLOCK_BYTES;

/// Checks that a root is written only when all blocks before it are on their devices. Each command
/// takes a while.
#[derive(Default)]
struct Order {
    commands: Cell<u64>,
    roots: Cell<u64>,
    /// Writes of blocks, by device and offset, and whether they have ended. A flush takes out those
    /// that had ended before it.
    unflushed: RefCell<BTreeMap<(String, u64), bool>>,
}

impl Order {
    fn is_root(command: &Command<'_>) -> bool {
        let at = command.offset_bytes;
        let in_ring = |area: u64| at >= area && ROOTS.contains(&(at - area));
        command.operation == Operation::Write && label_offsets(SIZE).into_iter().any(in_ring)
    }

    fn is_block(command: &Command<'_>) -> bool {
        let (first, end) = body_range(SIZE);
        let is_in_body = (first..end).contains(&command.offset_bytes);
        command.operation == Operation::Write && is_in_body && command.device != "l"
    }
}

impl Script for Order {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        if Self::is_root(&command) {
            self.roots.set(self.roots.get() + 1);
            assert!(self.unflushed.borrow().is_empty(), "a root before what it names");
        }
        if Self::is_block(&command) {
            let write = (command.device.to_owned(), command.offset_bytes);
            self.unflushed.borrow_mut().insert(write, false);
        }
        let is_block = Self::is_block(&command);
        Box::pin(async move {
            // Blocks take longer than the changes of a group to the map.
            let most_us = if is_block { 5_000 } else { 300 };
            rt::sleep(Nanos::from_micros(rt::random_below(most_us))).await;
            Decision::Run
        })
    }

    fn after<'a>(&'a self, command: Command<'a>) -> Answer<'a, ()> {
        if Self::is_block(&command) {
            let write = (command.device.to_owned(), command.offset_bytes);
            self.unflushed.borrow_mut().insert(write, true);
        }
        if command.operation == Operation::Flush {
            // The device has taken it just now, with all writes that have ended.
            self.unflushed
                .borrow_mut()
                .retain(|(device, _), has_ended| device != command.device || !*has_ended);
        }
        self.commands.set(self.commands.get() + 1);
        Box::pin(rt::sleep(Nanos(rt::random_below(300_000))))
    }
}

/// A block that becomes smaller when it is compressed; 0 gives zeroes.
fn content(salt: u64) -> IoBytes {
    IoBuf::copy_of(&salt.to_le_bytes().repeat(512)).freeze()
}

/// A client's view of its volume: the salt of each block, 0 for zeroes.
struct Client {
    v: Device,
    salts: Vec<u64>,
}

impl Client {
    /// Changes some blocks. `salt` is higher than all before.
    async fn change(&mut self, salt: u64) {
        let blocks = self.salts.len() as u64;
        for turn in 0..blocks / 3 {
            let at = rt::random_below(blocks);
            let is_trim = turn % 5 == 4;
            // Some contents are alike.
            let salt = if is_trim { 0 } else { salt + turn / 3 };
            match is_trim {
                true => self.v.discard(at * BLOCK, BLOCK, false).await.unwrap(),
                false => self.v.write(at * BLOCK, content(salt), false).await.unwrap(),
            }
            self.salts[at as usize] = salt;
        }
    }

    /// Reads blocks, several at a time, and compares them until `has_ended`.
    async fn look_around(&self, has_ended: &Cell<bool>) {
        let looks = (0..32).map(async |_| {
            while !has_ended.get() {
                self.look(rt::random_below(self.salts.len() as u64) as usize).await;
            }
        });
        rt::join_all(looks).await;
    }

    /// Reads a block and compares it.
    async fn look(&self, at: usize) {
        let found = self.v.read(at as u64 * BLOCK, IoBuf::zeroed(4096)).await.unwrap();
        let salt = self.salts[at];
        assert!(found[..] == content(salt)[..], "block {at} is not {salt}");
    }
}

async fn commits_in_order(properties: &[(&str, &str)]) {
    let order = Rc::new(Order::default());
    let opener = scripted(memory(&["a", "b", "l"], SIZE), order.clone());
    let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    let properties = properties.iter().chain(&[("primarycache", "none")]);
    let properties = properties.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let size = pool.summary().size_bytes / 4 * 3 / BLOCK * BLOCK;
    let spec = VolumeSpec { sparse: true, properties: properties.collect(), ..volume(size) };
    pool.create_volume(&spec).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    let mut client = Client { v, salts: vec![0; (size / BLOCK) as usize] };
    for round in 1..=8u64 {
        client.change(round << 32).await;
        let has_ended = Rc::new(Cell::new(false));
        let syncing = rt::spawn({
            let (pool, has_ended) = (pool.clone(), has_ended.clone());
            async move {
                pool.sync().await.unwrap();
                has_ended.set(true);
            }
        });
        client.look_around(&has_ended).await;
        syncing.await;
    }
    for at in 0..client.salts.len() {
        client.look(at).await;
    }
    assert!(order.roots.get() >= 16 && order.commands.get() > 1000);
    drop(client);
    pool.export().await.unwrap();
}

#[test]
fn roots_follow_what_they_name_and_reads_find_it_at_any_time() {
    for (seed, properties) in
        [&[][..], &[("compression", "lz4")], &[("dedup", "on")]].iter().enumerate()
    {
        Runtime::simulated(seed as u64).block_on(commits_in_order(properties));
    }
}

#[test]
fn wait_for_an_older_group_leaves_the_wait_for_a_newer_one_alone() {
    Runtime::simulated(4).block_on(async {
        let opener =
            paced(memory(&["a", "l"], SIZE), |name: &str, operation: Operation, at: u64| {
                let waits = name == "a" && operation == Operation::Write && at >= LABEL_BYTES;
                waits.then_some(Nanos::from_millis(20))
            });
        let mut options = spec(Layout::Raid0, &["a"], &["l"]);
        options.properties.insert("txg_timeout".to_owned(), "600".to_owned());
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let commit = |txg: TxgId| {
            let pool = pool.clone();
            rt::spawn(async move { pool.commit(txg).await })
        };
        v.write(0, stamp(4096, 1), false).await.unwrap();
        let older = pool.dirty.groups.borrow().open_txg();
        let first = commit(older);
        while pool.dirty.groups.borrow().open_txg() == older {
            rt::sleep(Nanos::from_micros(100)).await;
        }
        v.write(BLOCK, stamp(4096, 2), false).await.unwrap();
        let newer = commit(older.next());
        rt::sleep(Nanos::from_micros(100)).await;
        let second = commit(older);
        first.await.unwrap();
        second.await.unwrap();
        rt::sleep(Nanos::from_secs(10)).await;
        assert!(newer.is_finished(), "it waits for the clock");
        newer.await.unwrap();
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_root_that_is_wanted_while_another_is_on_its_way_follows_it() {
    Runtime::simulated(5).block_on(async {
        let opener =
            paced(memory(&["a", "l"], SIZE), |name: &str, operation: Operation, at: u64| {
                let waits = name == "a" && operation == Operation::Write && at < LABEL_BYTES;
                waits.then_some(Nanos::from_millis(100))
            });
        let mut options = spec(Layout::Raid0, &["a"], &["l"]);
        options.properties.insert("txg_timeout".to_owned(), "600".to_owned());
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.sync().await.unwrap();
        drop(pool.writers.lock().await);
        let before = pool.sync.commit.get();
        let first = rt::spawn({
            let pool = pool.clone();
            async move { pool.sync().await.unwrap() }
        });
        rt::sleep(Nanos::from_millis(50)).await;
        assert!(pool.writers.try_lock().is_none() && pool.sync.commit.get() == before);
        // As for a device that fails just now.
        pool.sync.root_wanted.set(true);
        pool.sync.wake.notify_all();
        first.await;
        assert_eq!(pool.sync.commit.get(), before.next());
        rt::sleep(Nanos::from_secs(10)).await;
        assert_eq!(pool.sync.commit.get(), before.next().next(), "it waits for the clock");
        pool.export().await.unwrap();
    });
}
