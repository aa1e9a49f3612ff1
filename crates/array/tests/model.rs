//! An array against a flat map of blocks, under random writes and random failures that stay
//! within what the layout covers: a read is right, always.

mod common;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use common::{FaultyDevice, Rig, SEGMENTS, block, segment};
use forebay_array::{ArrayError, BlockVerdict, Layout, MemberState};
use forebay_device::Device;
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Writes the next rows of a segment; a full one begins a new life.
    Write {
        segment: u32,
        rows: u32,
    },
    /// Two writes on their way together, with a flush among them.
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
    /// From now on a device fails its writes, its flushes, everything.
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
    /// A device gets well, is taken back and rebuilt.
    Return {
        device: usize,
        rebuild: bool,
    },
    /// Replaces a device and rebuilds.
    Replace {
        device: usize,
    },
    /// Turns the bits of a unit, and has it scrubbed.
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
    /// Rows written in each segment's life.
    rows: RefCell<BTreeMap<u32, u32>>,
    /// The device behind each column, and its id.
    devices: RefCell<Vec<(DeviceId, Rc<FaultyDevice>)>>,
    /// Columns that something is wrong with: no more than parity covers.
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

    /// Whether a column may be hurt now; then it counts as hurt.
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
        // Counted before the write, so that two of one segment do not take the same rows.
        self.rows.borrow_mut().insert(index, first + rows);
        let written = self.rig.write_rows(segment(index), first, rows, version).await;
        written.expect("no more is hurt than the layout covers");
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
            let rebuilt = self.rig.array.rebuild_segment(stale, rows, &judge).await;
            assert_eq!(rebuilt.expect("enough columns are there").damaged, vec![]);
        }
    }

    /// Whether a column is as good as new.
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

    async fn step(&self, step: Step) {
        let g = self.rig.geometry();
        let array = &self.rig.array;
        match step {
            Step::Write { segment, rows } => self.write(segment, rows).await,
            Step::WriteTwo { segments: (a, b), rows } => {
                let flush = async {
                    rt::sleep(forebay_units::Nanos(rt::random_below(1500))).await;
                    array.flush().await.expect("no more is hurt than the layout covers");
                };
                let second = async {
                    if a != b {
                        self.write(b, rows).await;
                    }
                };
                rt::join(rt::join(self.write(a, rows), second), flush).await;
            }
            Step::Flush => {
                array.flush().await.expect("no more is hurt than the layout covers");
            }
            Step::Read { segment: index, from, blocks } => {
                let from = from % g.blocks_per_segment();
                let blocks = blocks.min(g.blocks_per_segment() - from);
                let addr = BlockAddr::new(segment(index), from);
                let got = array.read(addr, blocks).await.expect("enough columns are there");
                for (at, got) in got.chunks(BLOCK_LEN).enumerate() {
                    let addr = addr.plus(at as u32);
                    assert_ne!(self.judge(addr, got), BlockVerdict::Bad, "{addr}");
                }
            }
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
                let (id, _) = self.device(device % g.members);
                match array.offline(id).await {
                    Ok(()) => assert_eq!(self.state(id), MemberState::Offline),
                    Err(ArrayError::WouldLose { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            Step::Return { device, rebuild } => {
                let column = device % g.members;
                let (id, device) = self.device(column);
                device.heal();
                if self.state(id) != MemberState::Online {
                    array.online(id, Some(device as Device)).expect("it fits");
                }
                if rebuild {
                    self.rebuild_all().await;
                    self.scrub().await;
                    if self.recovered(column) {
                        self.hurt.borrow_mut().remove(&column);
                    }
                }
            }
            Step::Replace { device } if self.hurt(device % g.members) => {
                let column = device % g.members;
                let (old, _) = self.device(column);
                let ids = array.status().iter().map(|m| m.id.0).max().expect("members");
                let (new, spare) = (DeviceId(ids + 1), self.rig.spare("spare"));
                array.replace(old, new, spare.clone()).expect("it fits");
                self.rebuild_all().await;
                array.flush().await.expect("no more is hurt than the layout covers");
                assert!(array.replaced().contains(&old));
                array.detach(old).expect("its successor has everything");
                self.devices.borrow_mut()[column] = (new, spare);
                self.hurt.borrow_mut().remove(&column);
            }
            Step::Rot { device, segment: index, row } if self.hurt(device % g.members) => {
                // Seen by nobody until it is scrubbed: so it is, before anything reads it. That
                // takes a device that is there.
                let (id, device) = self.device(device % g.members);
                if device.gone.get() || self.state(id) != MemberState::Online {
                    return;
                }
                let offset = g.column_start_bytes(index) + u64::from(row) * g.unit_bytes;
                device.corrupt(offset, g.unit_bytes).await;
                self.scrub().await;
            }
            Step::BadBlock { device, segment: index, block } if self.hurt(device % g.members) => {
                let (_, device) = self.device(device % g.members);
                let first = g.column_start_bytes(index) / BLOCK_BYTES;
                device.bad_blocks.borrow_mut().insert(first + block);
            }
            Step::Discard { segment: index } => self.discard(index).await,
            // Too much is hurt already.
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
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reads_are_right_whatever_fails(
        (layout, members) in layouts(),
        steps in prop::collection::vec(step(), 1..60),
        seed: u64,
    ) {
        common::simulate(seed, async move {
            let world = World::new(layout, members);
            for step in steps {
                world.step(step).await;
            }
            // At the end every live block is read once more.
            let live = world.blocks.borrow().clone();
            for (addr, version) in live {
                let got = world.rig.array.read(addr, 1).await.expect("enough columns are there");
                assert!(got[..] == block(addr, version)[..], "{addr} is not version {version}");
            }
        });
    }
}
