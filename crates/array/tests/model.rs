//! Model test: an array against a flat map of blocks, under random writes and random failures
//! within the redundancy of the layout. Every read must be right.

mod common;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use common::{FaultyDevice, Rig, SEGMENTS, block, segment};
use forebay_array::{ArrayError, BlockVerdict, MemberState};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, Layout};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Writes the next rows of a segment; a full segment is reused.
    Write {
        segment: u32,
        rows: u32,
    },
    /// Two writes in parallel, with a flush among them.
    WriteTwo {
        segments: (u32, u32),
        rows: u32,
    },
    Flush,
    Read {
        segment: u32,
        from: u32,
        blocks: u32,
    },
    /// From now on a device fails its writes (below: its flushes, all commands).
    FailWrites {
        device: usize,
    },
    FailFlushes {
        device: usize,
    },
    Gone {
        device: usize,
    },
    Offline {
        device: usize,
    },
    /// A device recovers, is brought online, and may be rebuilt.
    Return {
        device: usize,
        rebuild: bool,
    },
    /// Replaces a device and rebuilds.
    Replace {
        device: usize,
    },
    /// Flips the bits of a unit, then scrubs.
    Rot {
        device: usize,
        segment: u32,
        row: u32,
    },
    /// A sector that cannot be read until it is written.
    BadBlock {
        device: usize,
        segment: u32,
        block: u64,
    },
    Discard {
        segment: u32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let s = 0..SEGMENTS;
    let d = 0usize..6;
    prop_oneof![
        6 => (s.clone(), 1u32..4).prop_map(|(segment, rows)| Step::Write { segment, rows }),
        3 => (s.clone(), s.clone(), 1u32..3)
            .prop_map(|(a, b, rows)| Step::WriteTwo { segments: (a, b), rows }),
        3 => Just(Step::Flush),
        6 => (s.clone(), 0u32..64, 1u32..20)
            .prop_map(|(segment, from, blocks)| Step::Read { segment, from, blocks }),
        1 => d.clone().prop_map(|device| Step::FailWrites { device }),
        1 => d.clone().prop_map(|device| Step::FailFlushes { device }),
        1 => d.clone().prop_map(|device| Step::Gone { device }),
        1 => d.clone().prop_map(|device| Step::Offline { device }),
        4 => (d.clone(), any::<bool>())
            .prop_map(|(device, rebuild)| Step::Return { device, rebuild }),
        1 => d.clone().prop_map(|device| Step::Replace { device }),
        2 => (d.clone(), s.clone(), 0u32..4)
            .prop_map(|(device, segment, row)| Step::Rot { device, segment, row }),
        1 => (d, s.clone(), 0u64..8)
            .prop_map(|(device, segment, block)| Step::BadBlock { device, segment, block }),
        1 => s.prop_map(|segment| Step::Discard { segment }),
    ]
}

struct World {
    rig: Rig,
    /// Each live block's version.
    blocks: RefCell<BTreeMap<BlockAddr, u64>>,
    /// Rows written since each segment was reset.
    rows: RefCell<BTreeMap<u32, u32>>,
    /// The device behind each column, and its id.
    devices: RefCell<Vec<(DeviceId, Rc<FaultyDevice>)>>,
    /// Damaged columns: at most as many as parity covers.
    hurt: RefCell<BTreeSet<usize>>,
    version: RefCell<u64>,
}

impl World {
    fn new(layout: Layout, members: usize) -> Self {
        let rig = Rig::new(layout, members);
        let devices = rig
            .devices
            .iter()
            .enumerate()
            .map(|(at, d)| (DeviceId(at as u32), d.clone()))
            .collect();
        Self {
            rig,
            blocks: RefCell::default(),
            rows: RefCell::default(),
            devices: RefCell::new(devices),
            hurt: RefCell::default(),
            version: RefCell::new(0),
        }
    }

    fn judge(&self, addr: BlockAddr, data: &[u8]) -> BlockVerdict {
        match self.blocks.borrow().get(&addr) {
            None => BlockVerdict::Dead,
            Some(version) if data == block(addr, *version) => BlockVerdict::Good,
            Some(_) => BlockVerdict::Bad,
        }
    }

    /// Whether a column may be damaged now. If so, it counts as damaged.
    fn hurt(&self, column: usize) -> bool {
        let mut hurt = self.hurt.borrow_mut();
        let allowed = self.rig.geometry().parity_columns();
        if hurt.contains(&column) || hurt.len() < allowed {
            hurt.insert(column);
            return true;
        }
        false
    }

    fn device(&self, column: usize) -> (DeviceId, Rc<FaultyDevice>) {
        self.devices.borrow()[column].clone()
    }

    fn state(&self, id: DeviceId) -> MemberState {
        let status = self.rig.array.status();
        status.into_iter().find(|member| member.id == id).expect("a member").state
    }

    async fn write(&self, index: u32, rows: u32) {
        let limit = self.rig.geometry().rows();
        let first = self.rows.borrow().get(&index).copied().unwrap_or(0);
        let first = if first + rows > limit {
            self.discard(index).await;
            0
        } else {
            first
        };
        *self.version.borrow_mut() += 1;
        let version = *self.version.borrow();
        // Counted before the write, so that parallel writes take different rows.
        self.rows.borrow_mut().insert(index, first + rows);
        let written = self.rig.write_rows(segment(index), first, rows, version).await;
        written.expect("the layout covers the damage");
        let per_row = self.rig.geometry().blocks_per_row();
        for block in first * per_row..(first + rows) * per_row {
            self.blocks.borrow_mut().insert(BlockAddr::new(segment(index), block), version);
        }
    }

    async fn discard(&self, index: u32) {
        self.blocks.borrow_mut().retain(|addr, _| addr.segment() != segment(index));
        self.rows.borrow_mut().remove(&index);
        self.rig.array.discard_segment(segment(index)).await.expect("exists");
    }

    async fn rebuild_all(&self) {
        for stale in self.rig.array.stale_segments() {
            let rows = self.rows.borrow().get(&(stale.0 - common::FIRST_SEGMENT)).copied();
            let Some(rows) = rows else {
                self.rig.array.reset_segment(stale).expect("exists");
                continue;
            };
            let judge = |addr: BlockAddr, data: &[u8]| self.judge(addr, data);
            let rebuilt = self.rig.rebuild(stale, rows, &judge).await;
            assert_eq!(rebuilt.expect("enough columns are there").damaged, vec![]);
        }
    }

    /// Whether a column is online and up to date.
    fn recovered(&self, column: usize) -> bool {
        let status = self.rig.array.status();
        let mine = status.iter().filter(|member| member.column == column);
        let well = |m: &forebay_array::MemberStatus| {
            m.state == MemberState::Online && m.stale_segments == 0
        };
        mine.into_iter().all(well)
    }

    async fn scrub(&self) {
        let rows = self.rows.borrow().clone();
        for (index, rows) in rows {
            let judge = |addr: BlockAddr, data: &[u8]| self.judge(addr, data);
            let scrubbed = self.rig.array.scrub_rows(segment(index), 0, rows, &judge).await;
            assert_eq!(scrubbed.expect("enough columns are there").damaged, vec![]);
        }
    }

    async fn flush(&self) {
        self.rig.array.flush().await.expect("the layout covers the damage");
    }

    async fn write_two(&self, (a, b): (u32, u32), rows: u32) {
        let flush = async {
            rt::sleep(forebay_units::Nanos(rt::random_below(1500))).await;
            self.flush().await;
        };
        let second = async {
            if a != b {
                self.write(b, rows).await;
            }
        };
        rt::join(rt::join(self.write(a, rows), second), flush).await;
    }

    async fn read(&self, index: u32, from: u32, blocks: u32) {
        let limit = self.rig.geometry().blocks_per_segment();
        let from = from % limit;
        let addr = BlockAddr::new(segment(index), from);
        let got = self.rig.array.read(addr, blocks.min(limit - from)).await;
        for (at, got) in got.expect("enough columns are there").chunks(BLOCK_LEN).enumerate() {
            let addr = addr.plus(at as u32);
            assert_ne!(self.judge(addr, got), BlockVerdict::Bad, "{addr}");
        }
    }

    async fn take_offline(&self, column: usize) {
        let (id, _) = self.device(column);
        match self.rig.array.offline(id).await {
            Ok(()) => assert_eq!(self.state(id), MemberState::Offline),
            Err(ArrayError::WouldLose { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    async fn bring_back(&self, column: usize, rebuild: bool) {
        let (id, device) = self.device(column);
        device.heal();
        if self.state(id) != MemberState::Online {
            self.rig.array.online(id, Some(device.device())).expect("it fits");
        }
        if rebuild {
            self.rebuild_all().await;
            self.scrub().await;
            if self.recovered(column) {
                self.hurt.borrow_mut().remove(&column);
            }
        }
    }

    async fn replace(&self, column: usize) {
        let array = &self.rig.array;
        let (old, _) = self.device(column);
        let ids = array.status().iter().map(|m| m.id.0).max().expect("members");
        let (new, spare) = (DeviceId(ids + 1), self.rig.spare("spare"));
        array.replace(old, new, spare.device()).expect("it fits");
        self.rebuild_all().await;
        self.flush().await;
        assert!(array.replaced().contains(&old));
        array.detach(old).expect("its replacement is up to date");
        self.devices.borrow_mut()[column] = (new, spare);
        self.hurt.borrow_mut().remove(&column);
    }

    /// Damages a unit and scrubs before any read can see it. The scrub needs an online device.
    async fn corrupt_and_scrub(&self, column: usize, index: u32, row: u32) {
        let (id, device) = self.device(column);
        if device.gone.get() || self.state(id) != MemberState::Online {
            return;
        }
        let g = self.rig.geometry();
        let offset = g.column_start_bytes(index) + u64::from(row) * g.unit_bytes;
        device.corrupt(offset, g.unit_bytes).await;
        self.scrub().await;
    }

    async fn step(&self, step: Step) {
        let g = self.rig.geometry();
        match step {
            Step::Write { segment, rows } => self.write(segment, rows).await,
            Step::WriteTwo { segments, rows } => self.write_two(segments, rows).await,
            Step::Flush => self.flush().await,
            Step::Read { segment, from, blocks } => self.read(segment, from, blocks).await,
            Step::FailWrites { device } if self.hurt(device % g.members) => {
                self.device(device % g.members).1.fail_writes.set(true);
            }
            Step::FailFlushes { device } if self.hurt(device % g.members) => {
                self.device(device % g.members).1.fail_flushes.set(true);
            }
            Step::Gone { device } if self.hurt(device % g.members) => {
                self.device(device % g.members).1.gone.set(true);
            }
            Step::Offline { device } if self.hurt(device % g.members) => {
                self.take_offline(device % g.members).await;
            }
            Step::Return { device, rebuild } => self.bring_back(device % g.members, rebuild).await,
            Step::Replace { device } if self.hurt(device % g.members) => {
                self.replace(device % g.members).await;
            }
            Step::Rot { device, segment, row } if self.hurt(device % g.members) => {
                self.corrupt_and_scrub(device % g.members, segment, row).await;
            }
            Step::BadBlock { device, segment: index, block } if self.hurt(device % g.members) => {
                let (_, device) = self.device(device % g.members);
                let first = g.column_start_bytes(index) / BLOCK_BYTES;
                device.bad_blocks.borrow_mut().insert(first + block);
            }
            Step::Discard { segment: index } => self.discard(index).await,
            // The damage would exceed the redundancy.
            _ => {}
        }
    }
}

fn layouts() -> impl Strategy<Value = (Layout, usize)> {
    prop::sample::select(vec![
        (Layout::Mirror, 2),
        (Layout::Mirror, 3),
        (Layout::Raidz1, 3),
        (Layout::Raidz1, 5),
        (Layout::Raidz2, 4),
        (Layout::Raidz2, 6),
        (Layout::Raidz3, 5),
        (Layout::Raidz3, 6),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn reads_are_right_under_covered_failures(
        (layout, members) in layouts(),
        steps in prop::collection::vec(step(), 1..60),
        seed: u64,
    ) {
        common::simulate(seed, async move {
            let world = World::new(layout, members);
            for step in steps {
                world.step(step).await;
            }
            // In the end every live block is read once more.
            let live = world.blocks.borrow().clone();
            for (addr, version) in live {
                let got = world.rig.array.read(addr, 1).await.expect("enough columns are there");
                assert!(got[..] == block(addr, version)[..], "{addr} is not version {version}");
            }
        });
    }
}
