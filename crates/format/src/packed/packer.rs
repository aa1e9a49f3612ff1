//! The packer: compressed units become packed blocks, one after the other.

use super::*;

/// A packed block that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedBlock {
    /// Its number in the hidden volume.
    pub number: Lba,
    /// Its contents.
    pub bytes: Vec<u8>,
}

/// Fewest bytes of a unit that are worth a straddle over the end of a block.
const MIN_PART_BYTES: usize = 64;
/// Numbers that are looked at for four free ones in a row.
const MAX_LOOKED_AT: u64 = 1 << 16;

/// Fills packed blocks with units.
#[derive(Default)]
pub struct Packer {
    open: Option<Open>,
    /// Where the search for free numbers begins.
    next: u64,
}

/// The block that is being filled.
struct Open {
    number: u64,
    table: Encoder,
    units: u8,
    /// Bytes of `body` that are the end of a unit of the blocks before.
    continued: usize,
    body: Vec<u8>,
}

impl Open {
    fn new(number: u64, continued: &[u8]) -> Self {
        let (table, body) = (Encoder::new(), continued.to_vec());
        Self { number, table, units: 0, continued: continued.len(), body }
    }

    fn room(&self) -> usize {
        BLOCK_LEN - HEAD_BYTES - self.table.len() - self.body.len()
    }

    /// Adds a unit, of which the first `here` bytes lie in this block.
    fn add(&mut self, unit: &Unit, here: usize) {
        let kind = unit.codec.number() << 4 | unit.blocks;
        let len_bytes = unit.bytes.len() as u16;
        self.table.u32(unit.volume.0).u40(unit.lba.0).u8(kind).u16(len_bytes);
        self.units += 1;
        self.body.extend_from_slice(&unit.bytes[..here]);
    }

    fn finish(self) -> PackedBlock {
        let mut out = Encoder::new();
        out.u8(VERSION).u8(self.units).u16(self.continued as u16);
        out.bytes(&self.table.finish()).bytes(&self.body);
        let mut bytes = out.finish();
        bytes.resize(BLOCK_LEN, 0);
        PackedBlock { number: Lba(self.number), bytes }
    }
}

impl Packer {
    /// A packer that looks for free numbers from `next` on.
    #[must_use]
    pub fn new(next: u64) -> Self {
        Self { open: None, next }
    }

    /// Packs a unit. Returns the reference to its first block, and adds the blocks that are
    /// complete now to `full`. `None` when there are no free numbers near: then the unit is not
    /// packed. `is_free` says whether a number is in use nowhere.
    ///
    /// Panics when the unit has no bytes, or more than [`MAX_UNIT_BYTES`].
    pub fn push(
        &mut self,
        unit: &Unit,
        is_free: impl Fn(u64) -> bool,
        full: &mut Vec<PackedBlock>,
    ) -> Option<PackedRef> {
        let len_bytes = unit.bytes.len();
        assert!((1..=MAX_UNIT_BYTES).contains(&len_bytes), "a unit of {len_bytes} bytes");
        if !self.open.as_ref().is_some_and(|open| Self::takes(open, unit, &is_free)) {
            full.extend(self.flush());
            let number = self.find(&is_free)?;
            self.open = Some(Open::new(number, &[]));
        }
        let open = self.open.as_mut().expect("it was just opened");
        let block = Lba(open.number);
        if ENTRY_BYTES + len_bytes <= open.room() {
            let slot = open.units;
            open.add(unit, len_bytes);
            return Some(PackedRef { block, slot, index: 0 });
        }
        let here = open.room() - ENTRY_BYTES;
        open.add(unit, here);
        let mut further = 0;
        for part in unit.bytes[here..].chunks(BLOCK_LEN - HEAD_BYTES) {
            further += 1;
            let number = block.0 + u64::from(further);
            full.extend(self.open.replace(Open::new(number, part)).map(Open::finish));
            self.next = number + 1;
        }
        Some(PackedRef { block, slot: WHOLE_SLOTS - 1 + further, index: 0 })
    }

    /// Whether a unit can begin in the open block.
    fn takes(open: &Open, unit: &Unit, is_free: impl Fn(u64) -> bool) -> bool {
        let len_bytes = unit.bytes.len();
        if ENTRY_BYTES + len_bytes <= open.room() {
            return open.units < WHOLE_SLOTS;
        }
        let here = open.room().saturating_sub(ENTRY_BYTES);
        let rest = len_bytes - here.min(len_bytes);
        let further = rest.div_ceil(BLOCK_LEN - HEAD_BYTES) as u64;
        let mut numbers = open.number + 1..=open.number + further;
        here >= MIN_PART_BYTES
            && further <= MAX_FURTHER
            && numbers.all(|number| number < MAX_PACKED_BLOCKS && is_free(number))
    }

    /// Four free numbers in a row.
    fn find(&mut self, is_free: impl Fn(u64) -> bool) -> Option<u64> {
        let mut first = self.next;
        let mut at = first;
        for _ in 0..MAX_LOOKED_AT {
            if at >= MAX_PACKED_BLOCKS {
                (first, at) = (0, 0);
            }
            if !is_free(at) {
                first = at + 1;
            } else if at - first == MAX_FURTHER {
                self.next = first + 1;
                return Some(first);
            }
            at += 1;
        }
        self.next = first;
        None
    }

    /// The block that is being filled, which is complete with this.
    pub fn flush(&mut self) -> Option<PackedBlock> {
        self.open.take().map(Open::finish)
    }
}
