//! Disks with a volatile cache that fail on demand and change what they hold.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, Operation};
use forebay_sim::{DiskConfig, SimDisk, World};
use forebay_testkit::{Answer, Command, Decision, Probe, Script};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, DeviceId};

pub struct FailingDisk {
    disk: Rc<SimDisk>,
    pub is_gone: Cell<bool>,
    pub fails_writes: Cell<bool>,
    pub fails_flushes: Cell<bool>,
    /// Blocks that cannot be read until they are written.
    unreadable: RefCell<BTreeSet<u64>>,
    /// Blocks of it were changed that no scrub has repaired durably.
    pub is_rotten: Cell<bool>,
    /// It failed at some time, or was changed.
    pub was_hurt: Cell<bool>,
}

impl FailingDisk {
    pub fn new(world: &Rc<World>, id: DeviceId, size_bytes: u64) -> Rc<Self> {
        let disk = SimDisk::new(world, DiskConfig::flash(&format!("d{}", id.0), size_bytes));
        Rc::new(Self {
            disk,
            is_gone: Cell::default(),
            fails_writes: Cell::default(),
            fails_flushes: Cell::default(),
            unreadable: RefCell::default(),
            is_rotten: Cell::default(),
            was_hurt: Cell::default(),
        })
    }

    pub fn device(self: &Rc<Self>) -> Device {
        Probe::new(self.disk.clone(), self.clone())
    }

    pub fn heal(&self) {
        for flag in [&self.is_gone, &self.fails_writes, &self.fails_flushes] {
            flag.set(false);
        }
    }

    /// What a read would find.
    pub fn peek(&self, offset_bytes: u64, len: usize) -> Vec<u8> {
        let held = RefCell::new(Vec::new());
        // The durable content comes first, then that of the cache.
        let copy = |bytes: &mut [u8]| drop(held.replace(bytes.to_vec()));
        self.disk.damage(offset_bytes, copy, len);
        held.into_inner()
    }

    /// A block decays.
    pub fn flip(&self, block: u64) {
        let bits = self.disk.number() as u8 + 1;
        self.damage(block, |bytes| bytes.iter_mut().for_each(|byte| *byte ^= bits));
    }

    /// A write to `from` went to `block` as well.
    pub fn misdirect(&self, from: u64, block: u64) {
        let other = self.peek(from * BLOCK_BYTES, BLOCK_LEN);
        self.damage(block, |bytes| bytes.copy_from_slice(&other));
    }

    fn damage(&self, block: u64, change: impl Fn(&mut [u8])) {
        self.is_rotten.set(true);
        self.disk.damage(block * BLOCK_BYTES, change, BLOCK_LEN);
    }

    /// A block cannot be read until it is written.
    pub fn lose(&self, block: u64) {
        self.unreadable.borrow_mut().insert(block);
    }
}

impl Script for FailingDisk {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let blocks = command.offset_bytes / BLOCK_BYTES..command.end_bytes() / BLOCK_BYTES;
        let fails = match command.operation {
            Operation::Read => self.unreadable.borrow().range(blocks.clone()).next().is_some(),
            Operation::Write => self.fails_writes.get(),
            Operation::Flush => self.fails_flushes.get(),
            _ => false,
        };
        let decision = match (self.is_gone.get(), fails) {
            (true, _) => Decision::Fail(ErrorKind::Gone),
            (_, true) => Decision::Fail(ErrorKind::Os { errno: 5 }),
            _ => Decision::Run,
        };
        match (&decision, command.operation) {
            // No later flush writes what was in the cache.
            (Decision::Fail(_), Operation::Flush) => self.disk.forget_cached(),
            (Decision::Run, Operation::Write) => {
                self.unreadable.borrow_mut().retain(|block| !blocks.contains(block));
            }
            _ => {}
        }
        Box::pin(std::future::ready(decision))
    }
}
