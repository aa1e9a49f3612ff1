//! Devices that fail on demand, and arrays over them.

#![allow(dead_code)] // Each test binary uses its own part of this.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_array::{
    Array, ArrayError, BlockVerdict, GroupGeometry, GroupSpec, Judge, Rebuilt, WriteKind, Written,
};
use forebay_device::{BlockDevice, Device, ErrorKind, IoBuf, MemoryDevice, Operation};
use forebay_rt as rt;
use forebay_rt::sync::Mutex;
use forebay_testkit::{Answer, Command, Decision, Probe, Script};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, Layout, Nanos, SegmentId};

/// A memory device with random delays and injected failures.
pub struct FaultyDevice {
    memory: Rc<MemoryDevice>,
    pub fail_reads: Cell<bool>,
    pub fail_writes: Cell<bool>,
    pub fail_flushes: Cell<bool>,
    pub gone: Cell<bool>,
    /// How commands fail that are to fail.
    pub failure: RefCell<ErrorKind>,
    /// 4 KiB blocks of the device that cannot be read until they are written.
    pub bad_blocks: RefCell<BTreeSet<u64>>,
    pub writes: Cell<u64>,
    pub reads: Cell<u64>,
    pub flushes: Cell<u64>,
    pub discards: Cell<u64>,
    /// Time of each read. Reads run one after the other, as on a disk with one arm.
    pub seek: Cell<Nanos>,
    /// How long a write takes before the device executes it.
    pub write_takes: Cell<Nanos>,
    pub flush_takes: Cell<Nanos>,
    arm: Mutex<()>,
}

impl FaultyDevice {
    pub fn new(name: &str, size_bytes: u64) -> Rc<Self> {
        Rc::new(Self {
            memory: Rc::new(MemoryDevice::new(name, size_bytes)),
            fail_reads: Cell::default(),
            fail_writes: Cell::default(),
            fail_flushes: Cell::default(),
            gone: Cell::default(),
            failure: RefCell::new(ErrorKind::Os { errno: 5 }),
            bad_blocks: RefCell::default(),
            writes: Cell::default(),
            reads: Cell::default(),
            flushes: Cell::default(),
            discards: Cell::default(),
            seek: Cell::default(),
            write_takes: Cell::default(),
            flush_takes: Cell::default(),
            arm: Mutex::new(()),
        })
    }

    /// The device itself.
    pub fn device(self: &Rc<Self>) -> Device {
        Probe::new(self.memory.clone(), self.clone())
    }

    pub fn heal(&self) {
        for flag in [&self.fail_reads, &self.fail_writes, &self.fail_flushes, &self.gone] {
            flag.set(false);
        }
        self.bad_blocks.borrow_mut().clear();
    }

    /// Flips bits over a whole range on the media. Each device flips other bits, so that they do
    /// not cancel out in the parity. A second call undoes the first.
    pub async fn corrupt(&self, offset_bytes: u64, len_bytes: u64) {
        let mut buf = self.peek(offset_bytes, len_bytes).await;
        let bits = self.memory.name().bytes().last().expect("a name");
        buf.iter_mut().for_each(|byte| *byte ^= bits);
        self.memory.write(offset_bytes, buf.freeze(), true).await.expect("in range");
    }

    /// The content of the media.
    pub async fn peek(&self, offset_bytes: u64, len_bytes: u64) -> IoBuf {
        let buf = IoBuf::zeroed(len_bytes as usize);
        self.memory.read(offset_bytes, buf).await.expect("in range")
    }
}

impl Script for FaultyDevice {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let blocks = command.offset_bytes / BLOCK_BYTES..command.end_bytes().div_ceil(BLOCK_BYTES);
        Box::pin(async move {
            rt::sleep(Nanos(1 + rt::random_below(1000))).await;
            if command.operation == Operation::Read && self.seek.get() > Nanos::ZERO {
                let _arm = self.arm.lock().await;
                rt::sleep(self.seek.get()).await;
            }
            if command.operation == Operation::Write {
                rt::sleep(self.write_takes.get()).await;
            }
            if command.operation == Operation::Flush {
                rt::sleep(self.flush_takes.get()).await;
            }
            let fails = match command.operation {
                Operation::Read => {
                    self.fail_reads.get()
                        || self.bad_blocks.borrow().range(blocks.clone()).next().is_some()
                }
                Operation::Write => self.fail_writes.get(),
                Operation::Flush => {
                    self.flushes.set(self.flushes.get() + 1);
                    self.fail_flushes.get()
                }
                _ => false,
            };
            if self.gone.get() {
                return Decision::Fail(ErrorKind::Gone);
            }
            if fails {
                return Decision::Fail(self.failure.borrow().clone());
            }
            match command.operation {
                Operation::Read => self.reads.set(self.reads.get() + 1),
                Operation::Write => {
                    self.writes.set(self.writes.get() + 1);
                    self.bad_blocks.borrow_mut().retain(|block| !blocks.contains(block));
                }
                Operation::Discard => self.discards.set(self.discards.get() + 1),
                _ => {}
            }
            Decision::Run
        })
    }
}

pub const SEGMENTS: u32 = 6;
pub const FIRST_SEGMENT: u32 = 4;

/// A small group: units of two blocks, four rows.
pub fn geometry(layout: Layout, members: usize) -> GroupGeometry {
    GroupGeometry {
        layout,
        members,
        unit_bytes: 2 * BLOCK_BYTES,
        column_bytes: 8 * BLOCK_BYTES,
        data_start_bytes: 3 * BLOCK_BYTES,
        first_segment: FIRST_SEGMENT,
        segments: SEGMENTS,
    }
}

/// An array of one group, and its devices. Member `i` has id `i`.
pub struct Rig {
    pub array: Rc<Array>,
    pub devices: Vec<Rc<FaultyDevice>>,
}

impl Rig {
    pub fn new(layout: Layout, members: usize) -> Self {
        Self::with(layout, members, |device| device)
    }

    /// As [`Rig::new`], with each device wrapped by `seen`.
    pub fn with(layout: Layout, members: usize, seen: impl Fn(Device) -> Device) -> Self {
        Self::shaped(geometry(layout, members), seen)
    }

    /// As [`Rig::new`], with rows of a mebibyte in two data columns: what is computed of them takes
    /// another thread, and a rebuild two steps.
    pub fn large(layout: Layout, members: usize) -> Self {
        let (unit_bytes, column_bytes) = (512 << 10, 4 * (512 << 10));
        let geometry = GroupGeometry { unit_bytes, column_bytes, ..geometry(layout, members) };
        Self::shaped(geometry, |device| device)
    }

    fn shaped(geometry: GroupGeometry, seen: impl Fn(Device) -> Device) -> Self {
        let devices: Vec<Rc<FaultyDevice>> = (0..geometry.members)
            .map(|i| FaultyDevice::new(&format!("d{i}"), geometry.needed_bytes()))
            .collect();
        let named =
            |(i, device): (usize, &Rc<FaultyDevice>)| (DeviceId(i as u32), seen(device.device()));
        let members = devices.iter().enumerate().map(named).collect();
        let array = Array::new(vec![GroupSpec::healthy(geometry, members)]).expect("sound");
        Self { array, devices }
    }

    pub fn geometry(&self) -> GroupGeometry {
        self.array.groups()[0]
    }

    /// A spare of the right size.
    pub fn spare(&self, name: &str) -> Rc<FaultyDevice> {
        FaultyDevice::new(name, self.geometry().needed_bytes())
    }

    /// Writes rows with the blocks that [`block`] returns for their address and `version`.
    pub async fn write_rows(
        &self,
        segment: SegmentId,
        first_row: u32,
        rows: u32,
        version: u64,
    ) -> Result<Written, ArrayError> {
        let mut batch = self.array.begin_batch(segment, first_row, rows, WriteKind::User)?;
        let mut index = 0;
        while index < batch.blocks() {
            // Buffers of different lengths, so that those of a row's columns end apart.
            let end = (index + 1 + (index * 5 + version as u32) % 4).min(batch.blocks());
            let run: Vec<u8> = (index..end).flat_map(|at| block(batch.addr(at), version)).collect();
            let run = IoBuf::copy_of(&run).freeze();
            for at in index..end {
                batch.put(at, run.slice((at - index) as usize * BLOCK_LEN, BLOCK_LEN));
            }
            index = end;
        }
        self.array.write_batch(batch).await
    }

    pub async fn fill(&self, segment: SegmentId, version: u64) {
        let rows = self.geometry().rows();
        self.write_rows(segment, 0, rows, version).await.expect("the array can be written");
    }

    /// Reads whole rows.
    pub async fn read_rows(
        &self,
        segment: SegmentId,
        first_row: u32,
        rows: u32,
    ) -> Result<IoBuf, ArrayError> {
        let blocks = self.geometry().blocks_per_row();
        self.array.read(BlockAddr::new(segment, first_row * blocks), rows * blocks).await
    }

    /// Reads whole rows, which hold what [`Rig::write_rows`] wrote.
    pub async fn expect_rows(
        &self,
        segment: SegmentId,
        first_row: u32,
        rows: u32,
        version: u64,
    ) -> IoBuf {
        let first = first_row * self.geometry().blocks_per_row();
        let read = self.read_rows(segment, first_row, rows).await.expect("readable");
        for (index, got) in (first..).zip(read.chunks(BLOCK_LEN)) {
            let addr = BlockAddr::new(segment, index);
            assert!(got == block(addr, version), "{addr} is not version {version}");
        }
        read
    }

    /// Makes a block of segment 0's column unreadable on a device.
    pub fn spoil(&self, device: usize, column_block: u64) {
        let start = self.geometry().column_start_bytes(0) / BLOCK_BYTES;
        self.devices[device].bad_blocks.borrow_mut().insert(start + column_block);
    }

    /// Rebuilds the first `rows` rows of a segment.
    pub async fn rebuild(
        &self,
        segment: SegmentId,
        rows: u32,
        judge: Judge<'_>,
    ) -> Result<Rebuilt, ArrayError> {
        let mut rebuilding = self.array.begin_rebuild(segment, rows)?;
        while self.array.rebuild_more(&mut rebuilding, judge).await? {}
        Ok(rebuilding.end())
    }

    /// Reads a whole segment in several ways and compares.
    pub async fn expect_segment(&self, segment: SegmentId, version: u64) {
        let g = self.geometry();
        let blocks = g.blocks_per_segment();
        let whole = self.expect_rows(segment, 0, g.rows(), version).await;
        for start in 0..blocks {
            let len = 1 + (start * 7) % 5;
            let len = len.min(blocks - start);
            let addr = BlockAddr::new(segment, start);
            let got = self.array.read(addr, len).await.expect("readable");
            assert_eq!(got.len(), len as usize * BLOCK_LEN);
            assert!(got[..] == whole[start as usize * BLOCK_LEN..][..got.len()], "{addr} +{len}");
        }
    }
}

/// Content that depends on its address and version.
pub fn block(addr: BlockAddr, version: u64) -> [u8; BLOCK_LEN] {
    let mut block = [0; BLOCK_LEN];
    let mut word = addr.raw().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version;
    for chunk in block.chunks_mut(8) {
        word = word.wrapping_mul(0xd129_0d3b_93c5_8e2d).rotate_left(17) ^ version;
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    block
}

pub fn segment(index: u32) -> SegmentId {
    SegmentId(FIRST_SEGMENT + index)
}

/// A block of segment 0.
pub fn addr(block: u32) -> BlockAddr {
    BlockAddr::new(segment(0), block)
}

/// What a reader of blocks of version 1 says of one.
pub fn judge(addr: BlockAddr, data: &[u8]) -> BlockVerdict {
    if data == block(addr, 1) { BlockVerdict::Good } else { BlockVerdict::Bad }
}

/// Every layout with a few numbers of members.
pub fn shapes() -> Vec<(Layout, usize)> {
    vec![
        (Layout::Raid0, 1),
        (Layout::Raid0, 3),
        (Layout::Mirror, 1),
        (Layout::Mirror, 2),
        (Layout::Mirror, 3),
        (Layout::Raidz1, 2),
        (Layout::Raidz1, 4),
        (Layout::Raidz2, 3),
        (Layout::Raidz2, 5),
        (Layout::Raidz3, 4),
        (Layout::Raidz3, 6),
    ]
}

/// Every subset of `0..n` with exactly `k` members.
pub fn choose(n: usize, k: usize) -> Vec<Vec<usize>> {
    let masks = (0u32..1 << n).filter(|mask| mask.count_ones() as usize == k);
    masks.map(|mask| (0..n).filter(|i| mask >> i & 1 == 1).collect()).collect()
}

/// Runs a test under simulation.
pub fn simulate(seed: u64, test: impl Future<Output = ()> + 'static) {
    rt::Runtime::simulated(seed).block_on(test);
}
