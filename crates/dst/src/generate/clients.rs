//! The scripts of clients: what each reads, writes, trims and flushes.

use forebay_sim::{Rng, Seed};

use crate::scenario::Act;
use crate::stamp::Fill;

/// How many of a thousand scenarios have all clients write to the same few blocks.
const HOT_BLOCKS_PER_MILLE: u64 = 150;
/// Sectors of the hot range. It is large enough that some of its data is only on media.
const HOT_SECTORS: u64 = 128;

/// The range that all clients write to.
#[derive(Clone, Copy)]
pub(super) struct HotBlocks {
    pub(super) volume: u32,
    pub(super) first: u64,
}

impl HotBlocks {
    /// Draws the range; mostly there is none.
    pub(super) fn draw(volumes: &[u64], seed: Seed) -> Option<Self> {
        seed.rng().chance(HOT_BLOCKS_PER_MILLE).then(|| Self::choose(volumes, seed))
    }

    /// Draws the range.
    pub(super) fn choose(volumes: &[u64], seed: Seed) -> Self {
        let mut rng = seed.rng();
        rng.chance(HOT_BLOCKS_PER_MILLE); // the draw of `HotBlocks::draw`
        let volume = rng.below(volumes.len() as u64);
        let first = rng.below((volumes[volume as usize] - HOT_SECTORS) / 8 + 1) * 8;
        Self { volume: volume as u32, first }
    }
}

/// A client of a nearly full pool. In the first boot it fills its part of each volume; then it
/// overwrites all volumes, some places more often than others.
pub(super) struct Filler<'a> {
    /// Sizes in sectors, all equal.
    pub(super) volumes: &'a [u64],
    /// Which client this is.
    pub(super) index: u64,
    /// How many clients there are.
    pub(super) clients: u64,
    /// How many acts follow the fill.
    pub(super) acts: u64,
    /// The client fills its part first.
    pub(super) fills: bool,
}

impl Filler<'_> {
    pub(super) fn draw(&self, rng: &mut Rng) -> Vec<Act> {
        let sectors = self.volumes[0];
        let mut out = if self.fills { self.fill(sectors) } else { Vec::new() };
        let fua = *rng.pick(&[0, 0, 100]);
        let hot = *rng.pick(&[0, 500, 900]);
        for _ in 0..self.acts {
            let span = if rng.chance(hot) { sectors / 5 } else { sectors };
            let blocks = if rng.chance(800) { rng.between(8, 64) } else { rng.between(1, 8) };
            let first = rng.below(span / 8) * 8;
            // The administrator may create two more volumes in place of destroyed ones.
            let all = self.volumes.len() as u64 + 2;
            let volume = if self.volumes.len() == 1 { 0 } else { rng.below(all) as u32 };
            let count = (blocks * 8).min(sectors - first);
            out.push(match rng.below(40) {
                0 => Act::Flush { volume },
                1 => Act::Read { volume, first, count },
                2 => Act::Trim { volume, first, count, fua: false },
                _ => write(volume, first, count, rng.chance(fua)),
            });
        }
        out
    }

    fn fill(&self, sectors: u64) -> Vec<Act> {
        const LONG_WRITE_SECTORS: u64 = 512;
        let mut out = Vec::new();
        let part = sectors / self.clients / 8 * 8;
        for volume in 0..self.volumes.len() as u32 {
            let mut at = self.index * part;
            let is_last = self.index + 1 == self.clients;
            let end = if is_last { sectors } else { (self.index + 1) * part };
            while at < end {
                out.push(write(volume, at, LONG_WRITE_SECTORS.min(end - at), false));
                at += LONG_WRITE_SECTORS;
            }
        }
        out
    }
}

fn write(volume: u32, first: u64, count: u64, fua: bool) -> Act {
    Act::Write { volume, first, count, fua, fill: Fill::Noise }
}

/// A client's habits: some only write, some only read, some overwrite one place. Fields without a
/// unit are probabilities in thousandths.
struct Habits {
    volume: u32,
    start_sector: u64,
    span_sectors: u64,
    fua: u64,
    write: u64,
    unaligned: u64,
    large: u64,
    zeroing: u64,
    flush: u64,
    pause: u64,
    fill: Fill,
    is_sequential: bool,
    is_hot: bool,
    /// Trims and zeroes begin and end within blocks.
    zeroes_parts: bool,
}

impl Habits {
    fn draw(
        volumes: &[u64],
        hot_blocks: Option<HotBlocks>,
        zeroes_parts: bool,
        rng: &mut Rng,
    ) -> Self {
        let volume = rng.below(volumes.len() as u64) as u32;
        let sectors = volumes[volume as usize];
        let span_sectors = match rng.below(3) {
            0 => sectors.min(64),
            1 => sectors.min(512),
            _ => sectors,
        };
        let habits = Self {
            volume,
            start_sector: rng.below(sectors - span_sectors + 1) / 8 * 8,
            span_sectors,
            fua: *rng.pick(&[0, 100, 500, 1000]),
            write: rng.between(200, 900),
            unaligned: *rng.pick(&[0, 0, 200, 900]),
            large: *rng.pick(&[0, 0, 50]),
            zeroing: *rng.pick(&[0, 0, 60, 300]),
            flush: *rng.pick(&[0, 10, 100, 400]),
            pause: *rng.pick(&[0, 0, 50]),
            fill: if rng.chance(700) { Fill::Noise } else { Fill::Zeros },
            is_sequential: rng.chance(300),
            is_hot: false,
            zeroes_parts,
        };
        let Some(HotBlocks { volume, first }) = hot_blocks else { return habits };
        Self {
            volume,
            start_sector: first,
            span_sectors: HOT_SECTORS,
            write: 800,
            // Writes begin and end within blocks.
            unaligned: 900,
            large: 400,
            is_sequential: false,
            is_hot: true,
            ..habits
        }
    }

    /// Draws a range. `at` is where the last sequential range ended.
    fn range(&self, at: &mut u64, rng: &mut Rng) -> (u64, u64) {
        let span = self.span_sectors;
        let count = if self.is_hot {
            // Long writes over short ones.
            if rng.chance(self.large) { rng.between(17, 72) } else { rng.between(1, 12) }
        } else if rng.chance(self.large) {
            rng.between(16, 512)
        } else if rng.chance(self.unaligned) {
            rng.between(1, 24)
        } else {
            8 * rng.between(1, 4)
        };
        let count = count.min(span);
        let first = if self.is_sequential {
            *at = if *at + count > span { 0 } else { *at };
            *at += count;
            *at - count
        } else if rng.chance(self.unaligned) {
            rng.below(span - count + 1)
        } else {
            rng.below((span - count) / 8 + 1) * 8
        };
        (self.start_sector + first, count)
    }

    /// The whole blocks that a range touches, or some of its sectors.
    fn zeroed(&self, first: u64, count: u64, sectors: &mut Rng) -> (u64, u64) {
        if !self.zeroes_parts {
            return (first / 8 * 8, count.div_ceil(8) * 8);
        }
        let skip = sectors.below(count.min(8));
        (first + skip, count - skip - sectors.below((count - skip).min(8)))
    }

    fn act(&self, at: &mut u64, rng: &mut Rng, sectors: &mut Rng) -> Act {
        let volume = self.volume;
        if rng.chance(self.pause) {
            return Act::Pause { ns: 1 << rng.between(10, 30) };
        }
        if rng.chance(self.flush) {
            return Act::Flush { volume };
        }
        let (first, count) = self.range(at, rng);
        let fua = rng.chance(self.fua);
        if rng.chance(self.zeroing) {
            let (first, count) = self.zeroed(first, count, sectors);
            return match rng.below(2) {
                0 => Act::Trim { volume, first, count, fua },
                _ => Act::Zero { volume, first, count, fua, no_hole: rng.chance(300) },
            };
        }
        if rng.chance(self.write) {
            return Act::Write { volume, first, count, fua, fill: self.fill };
        }
        match rng.below(6) {
            0 => Act::Status { volume, first, count },
            _ => Act::Read { volume, first, count },
        }
    }
}

/// How many of a thousand clients trim and zero parts of blocks.
const PARTS_PER_MILLE: u64 = 400;

/// The script of a client. `sectors` draws where trims and zeroes begin and end within blocks.
pub(super) fn draw_client(
    volumes: &[u64],
    acts: u64,
    hot_blocks: Option<HotBlocks>,
    rng: &mut Rng,
    sectors: &mut Rng,
) -> Vec<Act> {
    let habits = Habits::draw(volumes, hot_blocks, sectors.chance(PARTS_PER_MILLE), rng);
    let mut at = 0;
    (0..acts).map(|_| habits.act(&mut at, rng, sectors)).collect()
}
