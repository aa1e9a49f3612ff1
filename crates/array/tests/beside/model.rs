//! What an array must hold: rows of segments that clients write, and what of it is durable.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_array::kernel::kernel_for;
use forebay_array::{
    Array, ArrayEvent, BlockVerdict, GroupGeometry, GroupSpec, MemberSpec, MemberState,
    MemberStatus, WriteKind, Written,
};
use forebay_rt as rt;
use forebay_rt::sync::Mutex;
use forebay_sim::{Rng, Seed, World};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, Layout, Nanos};

use crate::common::{Rig, block, geometry, segment};
use crate::disks::FailingDisk;

pub const SEGMENTS: u32 = 10;

/// What a pool has on its devices: the members as they were, and which rows hold which version.
#[derive(Clone, Default)]
struct Stored {
    members: Vec<MemberStatus>,
    rows: BTreeMap<u32, BTreeMap<u32, u64>>,
    dead: BTreeSet<BlockAddr>,
}

/// What outlives a power cut.
pub struct Rack {
    pub world: Rc<World>,
    pub geometry: GroupGeometry,
    disks: RefCell<BTreeMap<DeviceId, Rc<FailingDisk>>>,
    stored: RefCell<Stored>,
    /// Columns that may lack or hold anything: at most as many as parity covers.
    hurt: RefCell<BTreeSet<usize>>,
    /// How often a column was hurt.
    hurts: Cell<u64>,
    versions: Cell<u64>,
}

impl Rack {
    pub fn new(layout: Layout, members: usize, seed: Seed) -> Rc<Self> {
        let rack = Self {
            world: World::new(seed),
            geometry: GroupGeometry { segments: SEGMENTS, ..geometry(layout, members) },
            disks: RefCell::default(),
            stored: RefCell::default(),
            hurt: RefCell::default(),
            hurts: Cell::default(),
            versions: Cell::default(),
        };
        let slots = (0..members).map(|_| {
            let (id, disk) = rack.new_disk();
            vec![MemberSpec::healthy(id, disk.device())]
        });
        let spec = GroupSpec { geometry: rack.geometry, slots: slots.collect() };
        rack.stored.borrow_mut().members = Array::new(vec![spec]).expect("sound").status();
        Rc::new(rack)
    }

    fn new_disk(&self) -> (DeviceId, Rc<FailingDisk>) {
        let mut disks = self.disks.borrow_mut();
        let id = DeviceId(disks.len() as u32);
        let disk = FailingDisk::new(&self.world, id, self.geometry.needed_bytes());
        disks.insert(id, disk.clone());
        (id, disk)
    }

    pub fn disk(&self, id: DeviceId) -> Rc<FailingDisk> {
        self.disks.borrow()[&id].clone()
    }

    /// Whether a column may be hurt now. If so, it counts as hurt.
    pub fn hurt(&self, column: usize) -> bool {
        let mut hurt = self.hurt.borrow_mut();
        let may = hurt.contains(&column) || hurt.len() < self.geometry.parity_columns();
        if may && hurt.insert(column) {
            self.hurts.set(self.hurts.get() + 1);
        }
        may
    }

    pub fn hurt_columns(&self) -> Vec<usize> {
        self.hurt.borrow().iter().copied().collect()
    }

    /// The array as the devices and what is stored say.
    fn open(&self) -> Rc<Array> {
        let mut slots: Vec<Vec<MemberSpec>> = vec![Vec::new(); self.geometry.members];
        for member in &self.stored.borrow().members {
            let disk = self.disk(member.id);
            let is_open = !disk.is_gone.get() && member.state != MemberState::Offline;
            slots[member.column].push(MemberSpec {
                id: member.id,
                device: is_open.then(|| disk.device()),
                state: member.state,
                stale: member.durable_stale.clone(),
                errors: member.errors,
            });
        }
        Array::new(vec![GroupSpec { geometry: self.geometry, slots }]).expect("sound")
    }
}

#[derive(Clone, Default)]
struct Segment {
    is_used: bool,
    /// It gets no more rows.
    is_closed: bool,
    /// Nothing in it is live.
    is_dropped: bool,
    asked_rows: u32,
    /// Rows whose write was answered, and their version.
    rows: BTreeMap<u32, u64>,
    /// Commands that need it to stay as it is.
    pins: u32,
}

/// An array between two power cuts.
pub struct Model {
    pub rack: Rc<Rack>,
    pub rig: Rig,
    segments: RefCell<Vec<Segment>>,
    /// Blocks that are not live, and those that are with the next commit.
    dead: RefCell<BTreeSet<BlockAddr>>,
    dying: RefCell<BTreeSet<BlockAddr>>,
    committing: Mutex<()>,
    scrubbing: Mutex<()>,
    written: Cell<Written>,
    /// Versions whose write is not answered.
    writing: RefCell<BTreeSet<u64>>,
    states: RefCell<BTreeMap<DeviceId, MemberState>>,
    pub is_over: Cell<bool>,
}

/// Keeps a segment from being used anew.
struct Pin<'a>(&'a Model, u32);

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.segments.borrow_mut()[self.1 as usize].pins -= 1;
    }
}

impl Model {
    /// The array after a power cut, as far as it is durable.
    pub fn open(rack: &Rc<Rack>) -> Rc<Self> {
        let rig = Rig { array: rack.open(), devices: Vec::new() };
        let mut segments = vec![Segment::default(); SEGMENTS as usize];
        let stored = rack.stored.borrow().clone();
        for (index, rows) in stored.rows {
            segments[index as usize] =
                Segment { is_used: true, is_closed: true, rows, ..Segment::default() };
        }
        let states = rig.array.status().iter().map(|m| (m.id, m.state)).collect();
        Rc::new(Self {
            rack: rack.clone(),
            rig,
            segments: segments.into(),
            dead: stored.dead.into(),
            dying: RefCell::default(),
            committing: Mutex::new(()),
            scrubbing: Mutex::new(()),
            written: Cell::default(),
            writing: RefCell::default(),
            states: RefCell::new(states),
            is_over: Cell::new(false),
        })
    }

    fn version_at(&self, addr: BlockAddr) -> Option<u64> {
        let g = self.rack.geometry;
        let row = addr.block() / g.blocks_per_row();
        let segments = self.segments.borrow();
        segments[g.index_of(addr.segment()) as usize].rows.get(&row).copied()
    }

    fn judge(&self, addr: BlockAddr, data: &[u8]) -> BlockVerdict {
        match self.version_at(addr) {
            Some(_) if self.dead.borrow().contains(&addr) => BlockVerdict::Dead,
            Some(version) if data == block(addr, version) => BlockVerdict::Good,
            Some(_) => BlockVerdict::Bad,
            None => BlockVerdict::Dead,
        }
    }

    fn is_live(&self, index: u32) -> bool {
        let segment = &self.segments.borrow()[index as usize];
        segment.is_used && !segment.is_dropped
    }

    fn pin(&self, index: u32) -> Option<Pin<'_>> {
        if !self.is_live(index) {
            return None;
        }
        self.segments.borrow_mut()[index as usize].pins += 1;
        Some(Pin(self, index))
    }

    /// Runs of rows that were answered: the first, and how many.
    fn runs_of(&self, index: u32) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for row in self.segments.borrow()[index as usize].rows.keys() {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == *row => *count += 1,
                _ => runs.push((*row, 1)),
            }
        }
        runs
    }

    /// Rows to write: of a segment that is written already, or of a free one.
    fn take_rows(&self, rng: &mut Rng) -> Option<(u32, u32, u32)> {
        let limit = self.rack.geometry.rows();
        let mut segments = self.segments.borrow_mut();
        let has_room =
            |s: &Segment| s.is_used && !s.is_closed && !s.is_dropped && s.asked_rows < limit;
        let open: Vec<u32> =
            (0..SEGMENTS).filter(|index| has_room(&segments[*index as usize])).collect();
        let free = (0..SEGMENTS).find(|index| !segments[*index as usize].is_used);
        let index = match free {
            Some(free) if open.is_empty() || (open.len() < 2 && rng.chance(300)) => {
                self.rig.array.reset_segment(segment(free)).expect("exists");
                free
            }
            _ if open.is_empty() => return None,
            _ => *rng.pick(&open),
        };
        let chosen = &mut segments[index as usize];
        chosen.is_used = true;
        let first = chosen.asked_rows;
        let rows = (1 + rng.below(2) as u32).min(limit - first);
        chosen.asked_rows += rows;
        Some((index, first, rows))
    }

    pub async fn write(&self, rng: &mut Rng) {
        let Some((index, first, rows)) = self.take_rows(rng) else {
            return self.drop_segment(rng).await;
        };
        let version = self.rack.versions.get() + 1;
        self.rack.versions.set(version);
        self.writing.borrow_mut().insert(version);
        let written = self.rig.write_rows(segment(index), first, rows, version).await;
        self.writing.borrow_mut().remove(&version);
        let written = written.expect("the layout covers what is hurt");
        let before = self.written.get();
        self.written.set(Written {
            data_bytes: before.data_bytes + written.data_bytes,
            redundancy_bytes: before.redundancy_bytes + written.redundancy_bytes,
        });
        let chosen = &mut self.segments.borrow_mut()[index as usize];
        chosen.rows.extend((first..first + rows).map(|row| (row, version)));
    }

    /// A segment with nothing in flight is discarded once no commit needs it.
    pub async fn drop_segment(&self, rng: &mut Rng) {
        let limit = self.rack.geometry.rows();
        let is_full = |s: &Segment| {
            let is_full = s.is_closed || s.rows.len() as u32 == limit;
            s.is_used && !s.is_dropped && is_full
        };
        let full: Vec<u32> = {
            let segments = self.segments.borrow();
            (0..SEGMENTS).filter(|index| is_full(&segments[*index as usize])).collect()
        };
        if full.is_empty() {
            return rt::yield_now().await;
        }
        let index = *rng.pick(&full);
        self.segments.borrow_mut()[index as usize].is_dropped = true;
        self.commit().await;
        while self.segments.borrow()[index as usize].pins > 0 {
            rt::sleep(Nanos::from_micros(10)).await;
        }
        self.rig.array.discard_segment(segment(index)).await.expect("exists");
        self.dead.borrow_mut().retain(|addr| addr.segment() != segment(index));
        self.dying.borrow_mut().retain(|addr| addr.segment() != segment(index));
        self.segments.borrow_mut()[index as usize] = Segment::default();
    }

    /// Single blocks are overwritten elsewhere: they need not be kept once that is durable.
    pub fn kill_blocks(&self, rng: &mut Rng) {
        let index = rng.below(u64::from(SEGMENTS)) as u32;
        let blocks = self.rack.geometry.blocks_per_segment();
        let addr = BlockAddr::new(segment(index), rng.below(u64::from(blocks)) as u32);
        if self.is_live(index) && self.version_at(addr).is_some() {
            self.dying.borrow_mut().insert(addr);
        }
    }

    /// Makes durable what was answered, and notes how the members are.
    pub async fn commit(&self) {
        let _one = self.committing.lock().await;
        let mut rows = BTreeMap::new();
        for index in (0..SEGMENTS).filter(|index| self.is_live(*index)) {
            rows.insert(index, self.segments.borrow()[index as usize].rows.clone());
        }
        let dying = self.dying.take();
        self.rig.array.flush().await.expect("the layout covers what is hurt");
        self.dead.borrow_mut().extend(dying);
        let (members, dead) = (self.rig.array.status(), self.dead.borrow().clone());
        *self.rack.stored.borrow_mut() = Stored { members, rows, dead };
        self.note_states();
    }

    /// Every change of state is told, one after the other.
    fn note_states(&self) {
        let mut states = self.states.borrow_mut();
        for event in self.rig.array.events().take() {
            if let ArrayEvent::StateChanged { device, from, to, .. } = event {
                let before = states.insert(device, to).unwrap_or(MemberState::Online);
                assert_eq!(before, from, "{device} became {to}");
            }
        }
        for member in self.rig.array.status() {
            let told = states.get(&member.id).copied().unwrap_or(MemberState::Online);
            assert_eq!(told, member.state, "{}", member.id);
        }
    }

    /// Columns beside the hurt ones that a read can do without.
    fn columns_to_spare(&self, rng: &mut Rng) -> Vec<DeviceId> {
        let hurt = self.rack.hurt.borrow();
        let g = self.rack.geometry;
        let mut well: Vec<usize> = (0..g.members).filter(|c| !hurt.contains(c)).collect();
        let mut spared = Vec::new();
        for _ in 0..g.parity_columns() - hurt.len() {
            spared.push(well.swap_remove(rng.below(well.len() as u64) as usize));
        }
        let status = self.rig.array.status();
        status.iter().filter(|m| spared.contains(&m.column)).map(|m| m.id).collect()
    }

    /// Reads blocks that were answered, some of them from what is left without members.
    pub async fn read(&self, rng: &mut Rng) {
        let index = rng.below(u64::from(SEGMENTS)) as u32;
        let (Some(_pin), runs) = (self.pin(index), self.runs_of(index)) else { return };
        if runs.is_empty() {
            return;
        }
        let (first_row, rows) = *rng.pick(&runs);
        let per_row = self.rack.geometry.blocks_per_row();
        let skip = rng.below(u64::from(rows * per_row)) as u32;
        let blocks = 1 + rng.below(u64::from(rows * per_row - skip)) as u32;
        let first = BlockAddr::new(segment(index), first_row * per_row + skip);
        let hurts = self.rack.hurts.get();
        let excluded = if rng.chance(300) { self.columns_to_spare(rng) } else { Vec::new() };
        let got = match self.rig.array.read_reconstructed(first, blocks, &excluded).await {
            Ok(got) => got,
            // A column that is left out, and one that failed meanwhile.
            Err(_) if !excluded.is_empty() && self.rack.hurts.get() != hurts => return,
            Err(error) => panic!("{error}"),
        };
        for (at, got) in (0..).zip(got.chunks(BLOCK_LEN)) {
            let addr = first.plus(at);
            if self.judge(addr, got) == BlockVerdict::Bad {
                self.repair(addr).await;
            }
        }
    }

    async fn repair(&self, addr: BlockAddr) {
        let disks = self.rack.disks.borrow().clone();
        assert!(disks.values().any(|disk| disk.is_rotten.get()), "{addr} is wrong on its own");
        let mut all = self.rig.array.alternatives(addr).await.expect("something is there");
        let right = all.find(|data| self.judge(addr, data) != BlockVerdict::Bad);
        let right = right.unwrap_or_else(|| panic!("{addr}: none is right"));
        if self.judge(addr, &right) == BlockVerdict::Good {
            self.rig.array.repair(addr, &right).await.expect("exists");
        }
    }

    /// Reads every live block without as many columns as can be spared.
    pub async fn read_all(&self, rng: &mut Rng) {
        for index in 0..SEGMENTS {
            for (first, rows) in self.runs_of(index) {
                let excluded = self.columns_to_spare(rng);
                let per_row = self.rack.geometry.blocks_per_row();
                let addr = BlockAddr::new(segment(index), first * per_row);
                let array = &self.rig.array;
                let got = array.read_reconstructed(addr, rows * per_row, &excluded).await;
                for (at, got) in (0..).zip(got.expect("readable").chunks(BLOCK_LEN)) {
                    if self.judge(addr.plus(at), got) == BlockVerdict::Bad {
                        self.repair(addr.plus(at)).await;
                    }
                }
            }
        }
    }

    pub async fn scrub(&self) {
        let _one = self.scrubbing.lock().await;
        let judge = |addr: BlockAddr, data: &[u8]| self.judge(addr, data);
        for index in 0..SEGMENTS {
            let Some(_pin) = self.pin(index) else { continue };
            for (first, rows) in self.runs_of(index) {
                let scrubbed = self.rig.array.scrub_rows(segment(index), first, rows, &judge).await;
                self.check_none_lost(&scrubbed.expect("exists").damaged);
            }
        }
    }

    /// Blocks may have died since they were judged.
    fn check_none_lost(&self, damaged: &[BlockAddr]) {
        let dead = self.dead.borrow();
        let lost: Vec<_> = damaged.iter().filter(|addr| !dead.contains(addr)).collect();
        assert!(lost.is_empty(), "the layout covers what is hurt: {lost:?}");
    }

    /// How many rows a rebuild takes. `None` while rows are written that others follow.
    fn rows_to_rebuild(&self, index: u32) -> Option<u32> {
        let chosen = &self.segments.borrow()[index as usize];
        let end = chosen.rows.last_key_value().map_or(0, |(row, _)| row + 1);
        (chosen.is_closed || end == chosen.rows.len() as u32).then_some(end)
    }

    pub async fn rebuild(&self) {
        let judge = |addr: BlockAddr, data: &[u8]| self.judge(addr, data);
        for stale in self.rig.array.stale_segments() {
            let index = self.rack.geometry.index_of(stale);
            if !self.segments.borrow()[index as usize].is_used {
                self.rig.array.reset_segment(stale).expect("exists");
                continue;
            }
            let Some(_pin) = self.pin(index) else { continue };
            let Some(rows) = self.rows_to_rebuild(index) else { continue };
            let rebuilt = self.rig.rebuild(stale, rows, &judge).await;
            self.check_none_lost(&rebuilt.expect("enough is there").damaged);
        }
    }

    fn members_of(&self, column: usize) -> Vec<MemberStatus> {
        let status = self.rig.array.status();
        status.into_iter().filter(|member| member.column == column).collect()
    }

    /// A disk of a column that can be hurt.
    pub fn disk_of(&self, column: usize, rng: &mut Rng) -> (DeviceId, Rc<FailingDisk>) {
        let members = self.members_of(column);
        let id = rng.pick(&members).id;
        let disk = self.rack.disk(id);
        disk.was_hurt.set(true);
        (id, disk)
    }

    /// Blocks of a column that hold answered rows.
    pub fn blocks_on_disk(&self) -> Vec<u64> {
        let g = self.rack.geometry;
        let per_row = g.unit_bytes / BLOCK_BYTES;
        let mut blocks = Vec::new();
        for index in (0..SEGMENTS).filter(|index| self.is_live(*index)) {
            let start = g.column_start_bytes(index) / BLOCK_BYTES;
            for row in self.segments.borrow()[index as usize].rows.keys() {
                let first = start + u64::from(*row) * per_row;
                blocks.extend(first..first + per_row);
            }
        }
        blocks
    }

    /// Replaces the newest member of a column.
    pub fn replace(&self, column: usize) {
        let members = self.members_of(column);
        if let [member] = &members[..] {
            let (new, disk) = self.rack.new_disk();
            self.rig.array.replace(member.id, new, disk.device()).expect("it fits");
        }
    }

    /// Brings a column back, as far as that is possible beside the clients.
    pub async fn bring_back(&self, column: usize, rng: &mut Rng) {
        let mut have_ended = false;
        for member in self.members_of(column) {
            let disk = self.rack.disk(member.id);
            disk.heal();
            if member.state != MemberState::Online {
                let back = self.rig.array.online(member.id, Some(disk.device()));
                back.expect("it fits");
            }
        }
        if rng.chance(250) {
            self.replace(column);
        }
        if rng.chance(500) {
            // Writes that began before may not reach the members that are back.
            let before = self.writing.borrow().clone();
            while !self.writing.borrow().is_disjoint(&before) {
                rt::sleep(Nanos::from_micros(10)).await;
            }
            have_ended = true;
        }
        self.rebuild().await;
        self.scrub().await;
        self.commit().await;
        for id in self.rig.array.replaced() {
            self.rig.array.detach(id).expect("its replacement is up to date");
        }
        if let [member] = &self.members_of(column)[..] {
            let is_back = member.state == MemberState::Online && member.durable_stale.is_empty();
            if have_ended && is_back {
                self.commit().await;
                self.rack.disk(member.id).is_rotten.set(false);
                self.rack.hurt.borrow_mut().remove(&column);
            }
        }
    }

    /// Every column that counts as current is right on its disk, unless the disk was changed.
    pub fn audit(&self) {
        let g = self.rack.geometry;
        let status = self.rig.array.status();
        for index in (0..SEGMENTS).filter(|index| self.is_live(*index)) {
            let id = segment(index).0;
            let lacks =
                |member: &MemberStatus| member.durable_stale.iter().any(|r| r.contains(&id));
            let is_right = |member: &&MemberStatus| {
                let is_rotten = self.rack.disk(member.id).is_rotten.get();
                member.state == MemberState::Online && !lacks(member) && !is_rotten
            };
            for (row, version) in &self.segments.borrow()[index as usize].rows {
                let columns = self.columns_of(index, *row, *version);
                for member in status.iter().filter(is_right) {
                    let role = match g.layout {
                        Layout::Mirror => 0,
                        _ => g.role_of(index, member.column),
                    };
                    let at = g.column_start_bytes(index) + u64::from(*row) * g.unit_bytes;
                    let held = self.rack.disk(member.id).peek(at, g.unit_bytes as usize);
                    for (held, right) in held.chunks(BLOCK_LEN).zip(&columns[role]) {
                        let fits = right.as_ref().is_none_or(|right| held == right);
                        assert!(fits, "device {} lacks row {row} of {index}", member.id);
                    }
                }
            }
        }
    }

    /// The blocks of each role's column of a row; `None` for one that is dead, and for parity over
    /// such a block.
    fn columns_of(&self, index: u32, row: u32, version: u64) -> Vec<Vec<Option<Vec<u8>>>> {
        let g = self.rack.geometry;
        let mut columns = vec![Vec::new(); g.members];
        for at in (0..g.unit_bytes).step_by(BLOCK_LEN) {
            let offset_bytes = u64::from(row) * g.unit_bytes + at;
            let addr_of = |role| BlockAddr::new(segment(index), g.block_at(role, offset_bytes));
            let addrs: Vec<BlockAddr> = (0..g.data_columns()).map(addr_of).collect();
            let data: Vec<[u8; BLOCK_LEN]> = addrs.iter().map(|a| block(*a, version)).collect();
            let is_dead = |addr: &BlockAddr| self.dead.borrow().contains(addr);
            for ((addr, data), column) in addrs.iter().zip(&data).zip(&mut columns) {
                column.push((!is_dead(addr)).then(|| data.to_vec()));
            }
            if !g.is_raidz() {
                continue;
            }
            let mut parity = vec![vec![0; BLOCK_LEN]; g.parity_columns()];
            let from: Vec<&[u8]> = data.iter().map(|block| &block[..]).collect();
            let mut to: Vec<&mut [u8]> = parity.iter_mut().map(|block| &mut block[..]).collect();
            kernel_for(g.data_columns(), g.parity_columns()).encode(&from, &mut to);
            for (block, column) in parity.into_iter().zip(&mut columns[g.data_columns()..]) {
                column.push((!addrs.iter().any(is_dead)).then_some(block));
            }
        }
        columns
    }

    /// Once all columns are back, each is whole, and the figures are those of what happened.
    pub async fn check_whole(&self) {
        let array = &self.rig.array;
        assert_eq!(array.totals(WriteKind::User), self.written.get());
        for member in array.status() {
            assert_eq!((member.state, member.stale_segments), (MemberState::Online, 0));
            if !self.rack.disk(member.id).was_hurt.get() {
                assert_eq!(member.errors, Default::default(), "{}", member.id);
            }
        }
        for index in 0..SEGMENTS {
            for (first, rows) in self.runs_of(index) {
                let wrong = array.check_parity(segment(index), first, rows).await;
                assert_eq!(wrong, Ok(vec![]), "{index}");
            }
        }
        self.audit();
    }
}
