//! The pSLC cache: host writes in the order in which they came, until they move on.
//!
//! Positions count units since the drive was new; those from `tail` to `head` are in the cache. A
//! position is live while `position_of` its unit says so.

use super::Ssd;
use crate::ftl::WornOut;
use crate::link::ns;
use crate::spec::{FlashSpec, PslcSpec};

const NOWHERE: u64 = u64::MAX;
/// Bits that a cell holds outside of the cache.
const BITS_A_CELL: u64 = 3;
/// Stripes that move on for each stripe written while the cache is too full.
const MOST_FOLDS: u32 = 2;

#[derive(Clone, Debug)]
pub(super) struct Pslc {
    /// Units of a stripe, which one die programs at once, and of a block of all dies.
    stripe: u64,
    block: u64,
    most: u64,
    least: u64,
    head: u64,
    tail: u64,
    live: u64,
    /// The unit at each position, modulo their number.
    unit_of: Vec<u32>,
    position_of: Vec<u64>,
    pub program_ns: u64,
    pub read_ns: u64,
    pub idle_after_ns: u64,
    /// Units programmed, for the account of the medium.
    pub programmed: u64,
    pub folded: u64,
}

impl Pslc {
    pub(super) fn new(spec: &PslcSpec, flash: &FlashSpec, units: u32) -> Self {
        let layout = flash.layout();
        let stripe = u64::from(layout.slots_per_stripe);
        let whole = |bytes: u64| {
            let least = 4 * stripe * u64::from(layout.pools * layout.dies_per_pool);
            (bytes / u64::from(layout.slot_bytes)).max(least).next_multiple_of(stripe)
        };
        let (most, least) = (whole(spec.bytes.max(spec.static_bytes)), whole(spec.static_bytes));
        Self {
            stripe,
            block: (u64::from(layout.slots_per_block) / BITS_A_CELL)
                .next_multiple_of(stripe)
                .max(stripe),
            most,
            least,
            head: 0,
            tail: 0,
            live: 0,
            // One more stripe than it holds: the next is written before the oldest has moved on.
            unit_of: vec![0; (most + stripe * u64::from(MOST_FOLDS)) as usize],
            position_of: vec![NOWHERE; units as usize],
            program_ns: ns(spec.program_us),
            read_ns: ns(spec.read_us),
            idle_after_ns: ns(spec.idle_after_ms * 1e3),
            programmed: 0,
            folded: 0,
        }
    }

    /// Where a unit is, if it is here: the number of its stripe, and whether that is programmed.
    #[inline]
    pub(super) fn find(&self, unit: u32) -> Option<(u64, bool)> {
        let at = self.position_of[unit as usize];
        let open_from = self.head - self.head % self.stripe;
        (at != NOWHERE).then(|| (at / self.stripe, at < open_from))
    }

    /// A unit is no longer here.
    pub(super) fn forget(&mut self, unit: u32) -> bool {
        let was_here = self.position_of[unit as usize] != NOWHERE;
        self.position_of[unit as usize] = NOWHERE;
        self.live -= u64::from(was_here);
        was_here
    }

    pub(super) fn clear(&mut self) {
        self.head = self.head.next_multiple_of(self.stripe);
        self.tail = self.head;
        self.live = 0;
        self.position_of.fill(NOWHERE);
    }

    /// Units that it may hold while `mapped` of `units` are outside of it.
    fn limit(&self, units: u64, mapped: u64) -> u64 {
        (units.saturating_sub(mapped + self.live) / BITS_A_CELL).clamp(self.least, self.most)
    }

    /// Puts a unit at the end. Returns whether a stripe is full with it, and which.
    fn append(&mut self, unit: u32) -> Option<u64> {
        self.forget(unit);
        let places = self.unit_of.len() as u64;
        self.unit_of[(self.head % places) as usize] = unit;
        self.position_of[unit as usize] = self.head;
        (self.live, self.programmed) = (self.live + 1, self.programmed + 1);
        self.head += 1;
        (self.head % self.stripe == 0).then(|| self.head / self.stripe - 1)
    }

    /// Fills the open stripe with nothing. Returns its number, if one is open.
    pub(super) fn pad(&mut self) -> Option<u64> {
        let rest = self.head.next_multiple_of(self.stripe) - self.head;
        let places = self.unit_of.len() as u64;
        for at in self.head..self.head + rest {
            // No unit is at this position, whatever the number says.
            self.unit_of[(at % places) as usize] = 0;
        }
        self.head += rest;
        self.programmed += rest;
        (rest > 0).then(|| self.head / self.stripe - 1)
    }

    /// Whether there is a whole stripe that could move on.
    fn has_stripe(&self) -> bool {
        self.tail + self.stripe <= self.head - self.head % self.stripe
    }
}

impl Ssd {
    /// Writes one unit into the pSLC cache; as `write_unit`.
    pub(super) fn write_pslc(
        &mut self,
        unit: u32,
        now: u64,
        data_at: u64,
        writes: &[u64],
    ) -> Result<u64, WornOut> {
        let admitted = now.max(self.array.room_at(1));
        self.array.host_time = admitted.max(data_at);
        self.make_pslc_room()?;
        let Some(pslc) = &mut self.pslc else { return Ok(admitted) };
        self.ftl.forget_unit(unit);
        self.array.incoming.extend_from_slice(writes);
        let full = pslc.append(unit);
        let program_ns = pslc.program_ns;
        self.array.take_places(1);
        if let Some(stripe) = full {
            self.array.program_pslc(stripe, program_ns);
        }
        Ok(admitted)
    }

    /// Before a new stripe is begun in a full cache, old ones move on.
    fn make_pslc_room(&mut self) -> Result<(), WornOut> {
        let (units, mapped) = (self.ftl.config().units, self.ftl.mapped_units());
        for _ in 0..MOST_FOLDS {
            let Some(pslc) = &self.pslc else { return Ok(()) };
            let begins = pslc.head % pslc.stripe == 0;
            let used = pslc.head - pslc.tail + pslc.stripe;
            let limit = pslc.limit(u64::from(units), u64::from(mapped));
            if !begins || used <= limit || !pslc.has_stripe() {
                return Ok(());
            }
            self.fold_stripe()?;
        }
        Ok(())
    }

    /// The live units of the oldest stripe move on to blocks with several bits a cell.
    fn fold_stripe(&mut self) -> Result<(), WornOut> {
        let Some(pslc) = &self.pslc else { return Ok(()) };
        let (tail, stripe, places) = (pslc.tail, pslc.stripe, pslc.unit_of.len() as u64);
        let read_ns = pslc.read_ns;
        let mut is_read = false;
        for at in tail..tail + stripe {
            let Some(pslc) = &mut self.pslc else { break };
            let unit = pslc.unit_of[(at % places) as usize];
            if pslc.position_of[unit as usize] != at {
                continue;
            }
            if !is_read {
                is_read = true;
                self.array.fold_read(tail / stripe, read_ns);
            }
            if self.pools() > 1 {
                self.pool = self.ftl.pick_pool((self.pool + 1) % self.pools());
            }
            self.ftl.fold(unit, self.pool, &mut self.array)?;
            if let Some(pslc) = &mut self.pslc {
                pslc.forget(unit);
                pslc.folded += 1;
            }
        }
        let Some(pslc) = &mut self.pslc else { return Ok(()) };
        pslc.tail += stripe;
        if pslc.tail % pslc.block == 0 {
            self.array.erase_pslc();
        }
        Ok(())
    }

    /// Empties the cache while the drive is idle, up to `now`.
    pub(super) fn fold_while_idle(&mut self, now: u64) -> Result<(), WornOut> {
        let Some(pslc) = &self.pslc else { return Ok(()) };
        let idle_from = self.array.all_free().max(self.last_write_at) + pslc.idle_after_ns;
        if idle_from >= now || !pslc.has_stripe() {
            return Ok(());
        }
        self.array.host_time = self.array.host_time.max(idle_from);
        while self.array.all_free() < now && self.pslc.as_ref().is_some_and(Pslc::has_stripe) {
            self.fold_stripe()?;
        }
        Ok(())
    }

    /// A read of a unit that is in the cache. Returns when its data is in the controller.
    pub(super) fn read_pslc(&mut self, unit: u32, ready: u64) -> Option<u64> {
        let pslc = self.pslc.as_ref()?;
        let (stripe, is_programmed) = pslc.find(unit)?;
        let read_ns = pslc.read_ns;
        Some(if is_programmed { self.array.read_pslc(stripe, read_ns, ready) } else { ready })
    }
}
