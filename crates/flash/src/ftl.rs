//! Flash translation layer without time: the slot of each unit, and the cost of cleaning.
//!
//! What always holds: a mapped unit has exactly one live slot; a block's live count is the sum of
//! its live units' slots; every block is free, open, closed, being cleaned, or bad. The crate's
//! README explains units and slots.

use crate::chance::Chance;
use crate::prefetch::prefetch;
use crate::spec::{CleaningPolicy, DeviceSpec, FlashSpec, Frontiers, Pace};

mod benefit;
mod clean;
mod pool;
mod sorted;
mod wear;

pub use wear::WearSpread;

use benefit::Benefit;
use pool::{Candidates, Pool};

/// "No slot", "no unit", "no block".
pub(crate) const NONE: u32 = u32::MAX;

/// The cause of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A host write.
    Host,
    /// Cleaning moved a live unit.
    Clean,
    /// A unit that was written before into a pSLC cache moves on to its block.
    Fold,
    /// Nothing: the rest of a stripe or block filled up without data.
    Pad,
}

/// The receiver of flash operations of the translation layer. `()` ignores them.
pub trait Media {
    /// `slots` slots from `slot` on are appended to their open block.
    fn program(&mut self, slot: u32, slots: u32, origin: Origin);
    /// A live unit at `slot` is read in order to move it.
    fn read(&mut self, slot: u32, slots: u32);
    /// All slots of a superblock are erased.
    fn erase(&mut self, block: u32);
}

impl Media for () {
    #[inline]
    fn program(&mut self, _slot: u32, _slots: u32, _origin: Origin) {}
    #[inline]
    fn read(&mut self, _slot: u32, _slots: u32) {}
    #[inline]
    fn erase(&mut self, _block: u32) {}
}

/// Too many blocks have failed to hold the offered capacity: the device is read-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WornOut;

impl std::fmt::Display for WornOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("too many flash blocks have worn out; the device no longer accepts writes")
    }
}

impl std::error::Error for WornOut {}

/// The shape of a translation layer. [`FtlConfig::from_spec`] derives it from a device.
#[derive(Clone, Debug, PartialEq)]
pub struct FtlConfig {
    /// Units the host may address.
    pub units: u32,
    /// Slots one unit fills when it does not compress; 1 without compression.
    pub slots_per_unit: u32,
    /// Slots of a superblock, at least 2.
    pub slots_per_block: u32,
    /// Superblocks of one pool.
    pub blocks_per_pool: u32,
    /// Pools, each with open blocks and cleaning of its own.
    pub pools: u32,
    /// Free superblocks each pool keeps, at least 1.
    pub reserve_blocks: u32,
    /// Streams of host data, each with its own open block; at least 1.
    pub streams: u32,
    /// Whether moved data has its own open block.
    pub frontiers: Frontiers,
    /// How victims are chosen.
    pub policy: CleaningPolicy,
    /// Whether victims are cleaned at once.
    pub pace: Pace,
    /// Least worn free block first.
    pub dynamic_wear_leveling: bool,
    /// Erase count difference that makes a cold block move; 0 means never.
    pub static_wear_gap: u32,
    /// Mean cycles to failure; 0 means endless.
    pub cycles_mean: f64,
    /// Standard deviation of cycles to failure, as a share of the mean.
    pub cycles_sd_fraction: f64,
    /// Share of blocks bad from the start.
    pub factory_bad_fraction: f64,
}

impl FtlConfig {
    /// `blocks` superblocks of `slots_per_block` slots beyond what is open and in reserve (so that
    /// T = `blocks` * `slots_per_block`, as write amplification formulas count it) for `units`
    /// units; one pool, one shared open block, whole-block cleaning, no wear effects.
    #[must_use]
    pub fn textbook(units: u32, blocks: u32, slots_per_block: u32, policy: CleaningPolicy) -> Self {
        Self {
            units,
            slots_per_unit: 1,
            slots_per_block,
            blocks_per_pool: blocks + 2,
            pools: 1,
            reserve_blocks: 1,
            streams: 1,
            frontiers: Frontiers::Shared,
            policy,
            pace: Pace::Whole,
            dynamic_wear_leveling: false,
            static_wear_gap: 0,
            cycles_mean: 0.0,
            cycles_sd_fraction: 0.0,
            factory_bad_fraction: 0.0,
        }
    }

    /// The shape that `flash`, the flash part of `device`, gives. The device must have passed
    /// [`DeviceSpec::check`].
    #[must_use]
    pub fn from_spec(device: &DeviceSpec, flash: &FlashSpec) -> Self {
        let layout = flash.layout();
        Self {
            units: (device.offered_bytes() / u64::from(flash.ftl.mapping_unit_bytes)) as u32,
            slots_per_unit: layout.slots_per_unit,
            slots_per_block: layout.slots_per_block,
            blocks_per_pool: layout.blocks_per_pool,
            pools: layout.pools,
            reserve_blocks: flash.ftl.reserve_superblocks,
            streams: flash.ftl.streams,
            frontiers: flash.ftl.frontiers,
            policy: flash.ftl.policy,
            pace: flash.ftl.cleaning_pace,
            dynamic_wear_leveling: flash.ftl.dynamic_wear_leveling,
            static_wear_gap: flash.ftl.static_wear_gap,
            cycles_mean: flash.endurance.cycles_mean,
            cycles_sd_fraction: flash.endurance.cycles_sd_fraction,
            factory_bad_fraction: flash.endurance.factory_bad_fraction,
        }
    }
}

/// What the translation layer has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FtlCounters {
    /// Units the host wrote.
    pub host_units: u64,
    /// Slots those units filled.
    pub host_slots: u64,
    /// Units moved by cleaning.
    pub moved_units: u64,
    /// Slots those filled.
    pub moved_slots: u64,
    /// Slots filled without data.
    pub padded_slots: u64,
    /// Superblock erases.
    pub erases: u64,
    /// Units the host trimmed that held data.
    pub trimmed_units: u64,
    /// Superblocks cleaned for wear leveling rather than for space.
    pub static_moves: u64,
    /// Superblocks moved because they were read often.
    pub refreshes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockState {
    Free,
    Open,
    Closed,
    Cleaning,
    Bad,
}

/// A page-mapped translation layer.
#[derive(Clone, Debug)]
pub struct Ftl {
    config: FtlConfig,
    /// Unit to first slot.
    map: Vec<u32>,
    /// First slot to unit; stale where `live` has no bit.
    unit_of: Vec<u32>,
    /// One bit for the first slot of each live unit; `live_words` words for each block.
    live: Vec<u64>,
    live_words: usize,
    /// Slots of each unit; empty when all fill one.
    size: Vec<u8>,
    /// Live slots of each block.
    live_slots: Vec<u32>,
    state: Vec<BlockState>,
    erase_count: Vec<u32>,
    /// Cycles after which each block fails; empty when endless.
    cycle_limit: Vec<u32>,
    /// Host and clean slots programmed when the block was closed: its age for cost-benefit.
    closed_at: Vec<u64>,
    benefit: Benefit,
    pools: Vec<Pool>,
    /// The stream that the host writes to.
    stream: usize,
    /// 2^64 / slots_per_block, rounded up: turns a slot into its block with one multiplication.
    block_inverse: u64,
    clock_slots: u64,
    mapped_units: u32,
    bad_blocks: u32,
    worn_out: bool,
    chance: Chance,
    counters: FtlCounters,
}

impl Ftl {
    /// An empty device, every good block erased. Panics when the shape has no room for its units,
    /// which [`DeviceSpec::check`] reports in words.
    #[must_use]
    pub fn new(config: FtlConfig, seed: u64) -> Self {
        assert!(config.slots_per_block >= 2 && config.reserve_blocks >= 1, "no such shape");
        let blocks = config.pools * config.blocks_per_pool;
        let slots = blocks as usize * config.slots_per_block as usize;
        assert!(slots < NONE as usize, "more slots than 32 bits number");
        let live_words = config.slots_per_block.div_ceil(64) as usize;
        let variable = config.slots_per_unit > 1;
        let mut ftl = Self {
            map: vec![NONE; config.units as usize],
            unit_of: vec![NONE; slots],
            live: vec![0; live_words * blocks as usize],
            live_words,
            size: if variable { vec![0; config.units as usize] } else { Vec::new() },
            live_slots: vec![0; blocks as usize],
            state: vec![BlockState::Free; blocks as usize],
            erase_count: vec![0; blocks as usize],
            cycle_limit: Vec::new(),
            closed_at: vec![0; blocks as usize],
            benefit: Benefit::new(config.slots_per_block),
            pools: (0..config.pools).map(|pool| Pool::new(&config, pool)).collect(),
            stream: 0,
            block_inverse: u64::MAX / u64::from(config.slots_per_block) + 1,
            clock_slots: 0,
            mapped_units: 0,
            bad_blocks: 0,
            worn_out: false,
            chance: Chance::derive(seed, "ftl"),
            counters: FtlCounters::default(),
            config,
        };
        ftl.draw_limits(seed);
        assert!(ftl.room_slots() >= ftl.needed_slots(), "the shape has no room for its units");
        ftl
    }

    /// The shape.
    #[must_use]
    pub fn config(&self) -> &FtlConfig {
        &self.config
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> FtlCounters {
        self.counters
    }

    /// Slots programmed, for whatever reason, per slot the host wrote; 1 before any write.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        let c = &self.counters;
        if c.host_slots == 0 {
            return 1.0;
        }
        (c.host_slots + c.moved_slots + c.padded_slots) as f64 / c.host_slots as f64
    }

    /// Units that hold data.
    #[must_use]
    pub fn mapped_units(&self) -> u32 {
        self.mapped_units
    }

    /// Whether the device has become read-only.
    #[must_use]
    pub fn is_worn_out(&self) -> bool {
        self.worn_out
    }

    /// The first slot of a unit, if it holds data.
    #[inline]
    #[must_use]
    pub fn slot_of(&self, unit: u32) -> Option<u32> {
        let slot = self.map[unit as usize];
        (slot != NONE).then_some(slot)
    }

    /// Slots a mapped unit fills.
    #[inline]
    #[must_use]
    pub fn slots_of(&self, unit: u32) -> u32 {
        if self.size.is_empty() { 1 } else { u32::from(self.size[unit as usize]) }
    }

    /// The live unit that begins at `slot`, if one does.
    #[must_use]
    pub fn unit_at(&self, slot: u32) -> Option<u32> {
        let block = self.block_of(slot);
        let index = (slot - block * self.config.slots_per_block) as usize;
        let word = self.live[block as usize * self.live_words + index / 64];
        (word >> (index % 64) & 1 == 1).then(|| self.unit_of[slot as usize])
    }

    /// A number that follows from the whole state: equal for equal histories.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let c = &self.counters;
        let counters = [c.host_units, c.moved_units, c.padded_slots, c.erases, self.clock_slots];
        let tables = [&self.map, &self.live_slots, &self.erase_count];
        let table_words = tables.into_iter().flatten().map(|&word| u64::from(word));
        counters.into_iter().chain(table_words).fold(0x9e37_79b9_7f4a_7c15, |digest, word| {
            (digest ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31)
        })
    }

    /// The superblock of a slot.
    #[inline]
    #[must_use]
    pub fn block_of(&self, slot: u32) -> u32 {
        ((u128::from(slot) * u128::from(self.block_inverse)) >> 64) as u32
    }

    #[inline]
    fn pool_of(&self, block: u32) -> usize {
        if self.pools.len() == 1 { 0 } else { (block / self.config.blocks_per_pool) as usize }
    }

    /// What the host writes from now on belongs to `stream`, below the number of streams.
    pub fn select_stream(&mut self, stream: usize) {
        debug_assert!(stream < self.config.streams as usize, "no such stream");
        self.stream = stream;
    }

    /// Writes `unit`, which now fills `slots` slots (1 to the unit's full size), into `pool`, which
    /// [`Ftl::pick_pool`] should have picked for every stripe at least. Returns its slot.
    ///
    /// # Errors
    /// [`WornOut`] when too many blocks have failed.
    #[inline]
    pub fn write<M: Media>(
        &mut self,
        unit: u32,
        slots: u32,
        pool: usize,
        media: &mut M,
    ) -> Result<u32, WornOut> {
        self.pools[pool].select_stream(self.stream);
        // Room first: when there is none, the old data must still be there.
        self.make_room(pool, slots, media)?;
        let old = self.map[unit as usize];
        if old != NONE {
            self.forget(old, self.slots_of(unit));
        } else {
            self.mapped_units += 1;
        }
        if !self.size.is_empty() {
            self.size[unit as usize] = slots as u8;
        }
        self.counters.host_units += 1;
        self.counters.host_slots += u64::from(slots);
        Ok(self.append(pool, unit, slots, Origin::Host, media))
    }

    /// A hint that `unit` will be written after a while. Tables are larger than caches, so that
    /// waiting for memory is most of what a random write costs.
    #[inline]
    pub(crate) fn expect_later(&self, unit: u32) {
        prefetch(&self.map, unit as usize);
    }

    /// A hint that `unit` will be written soon, after [`Ftl::expect_later`].
    #[inline]
    pub(crate) fn expect_soon(&self, unit: u32) {
        let slot = self.map[unit as usize];
        if slot != NONE {
            let block = self.block_of(slot);
            let index = slot - block * self.config.slots_per_block;
            prefetch(&self.live, block as usize * self.live_words + (index / 64) as usize);
        }
    }

    /// Forgets a unit's data. Returns whether it held any.
    pub fn trim(&mut self, unit: u32) -> bool {
        let held = self.forget_unit(unit);
        self.counters.trimmed_units += u64::from(held);
        held
    }

    /// A unit's data is elsewhere from now on. Returns whether it was here.
    pub(crate) fn forget_unit(&mut self, unit: u32) -> bool {
        let slot = self.map[unit as usize];
        if slot == NONE {
            return false;
        }
        self.forget(slot, self.slots_of(unit));
        self.map[unit as usize] = NONE;
        self.mapped_units -= 1;
        true
    }

    /// A unit that is not here moves in from a pSLC cache. It counts as moved.
    pub(crate) fn fold<M: Media>(
        &mut self,
        unit: u32,
        pool: usize,
        media: &mut M,
    ) -> Result<(), WornOut> {
        self.make_room(pool, 1, media)?;
        debug_assert_eq!(self.map[unit as usize], NONE);
        self.mapped_units += 1;
        self.counters.moved_units += 1;
        self.counters.moved_slots += 1;
        self.append(pool, unit, 1, Origin::Fold, media);
        Ok(())
    }

    /// Erases every block that is not erased and forgets all data.
    pub fn secure_erase<M: Media>(&mut self, media: &mut M) {
        self.map.fill(NONE);
        self.live.fill(0);
        self.live_slots.fill(0);
        self.mapped_units = 0;
        let blocks = self.state.len() as u32;
        self.pools = (0..self.config.pools).map(|p| Pool::new(&self.config, p)).collect();
        for pool in &mut self.pools {
            pool.free.clear();
        }
        for block in 0..blocks {
            match self.state[block as usize] {
                BlockState::Free => self.give_back(block),
                BlockState::Bad => {}
                BlockState::Open | BlockState::Closed | BlockState::Cleaning => {
                    self.erase(block, media);
                }
            }
        }
    }

    /// Fills the rest of the host's open stripe in `pool` with nothing, so that what was appended
    /// so far gets programmed. `stripe_slots` must divide a block.
    pub fn pad_stripe<M: Media>(&mut self, pool: usize, stripe_slots: u32, media: &mut M) {
        self.pools[pool].select_stream(self.stream);
        let Some(open) = self.pools[pool].host_open() else { return };
        let rest = open.next % stripe_slots;
        if rest != 0 {
            self.pad(pool, Origin::Host, stripe_slots - rest, media);
        }
    }

    fn pad<M: Media>(&mut self, pool: usize, origin: Origin, slots: u32, media: &mut M) {
        let n = self.config.slots_per_block;
        let open = self.pools[pool].open_mut(origin);
        let slot = open.block * n + open.next;
        open.next += slots;
        debug_assert!(open.next <= n);
        self.counters.padded_slots += u64::from(slots);
        self.clock_slots += u64::from(slots);
        media.program(slot, slots, Origin::Pad);
    }

    /// Appends to an open block that has room.
    #[inline]
    fn append<M: Media>(
        &mut self,
        pool: usize,
        unit: u32,
        slots: u32,
        origin: Origin,
        media: &mut M,
    ) -> u32 {
        let open = self.pools[pool].open_mut(origin);
        let (block, index) = (open.block, open.next);
        open.next += slots;
        let slot = block * self.config.slots_per_block + index;
        self.unit_of[slot as usize] = unit;
        self.map[unit as usize] = slot;
        self.live[block as usize * self.live_words + (index / 64) as usize] |= 1 << (index % 64);
        self.live_slots[block as usize] += slots;
        self.pools[pool].live_slots += u64::from(slots);
        self.clock_slots += u64::from(slots);
        media.program(slot, slots, origin);
        slot
    }

    /// Takes the live mark off a unit's slots.
    #[inline]
    fn forget(&mut self, slot: u32, slots: u32) {
        let block = self.block_of(slot);
        let index = slot - block * self.config.slots_per_block;
        self.live[block as usize * self.live_words + (index / 64) as usize] &= !(1 << (index % 64));
        let key = self.live_slots[block as usize];
        self.live_slots[block as usize] = key - slots;
        let pool = self.pool_of(block);
        let pool = &mut self.pools[pool];
        pool.live_slots -= u64::from(slots);
        if let Candidates::Sorted(sorted) = &mut pool.candidates {
            let local = block - pool.first_block;
            if sorted.contains(local) {
                for step in 0..slots {
                    sorted.lower(local, key - step);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
