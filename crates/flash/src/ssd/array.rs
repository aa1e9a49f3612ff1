//! The flash array with a clock: the timelines of dies and channels, the write buffer before them.
//!
//! Work queues at its die in the translation layer's order. Cleaning reads take their die's time
//! but do not hold up the program that follows, because controllers read victims ahead. Host reads
//! go first. A channel carries the data of programs and reads, also while the die works.

use std::collections::VecDeque;

use super::die::{BusyTimes, Die, SuspendRule, Work};
use super::pending::Pending;
use crate::calendar::Calendar;
use crate::chance::Chance;
use crate::ftl::{Media, NONE, Origin};
use crate::link::{ns, ps_per_byte};
use crate::spec::{FlashSpec, Plp};

/// The place belongs to a unit of an open stripe: it is free at no known time.
const HELD: u64 = u64::MAX;

/// A program not yet known done: when it ends, and its first slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheduled {
    pub done: u64,
    pub slot: u32,
}

/// The open superblock of a stream of host data, with what waits for its last stripe.
#[derive(Clone, Debug)]
struct OpenStripe {
    /// The superblock, whose stripes carry units of the write buffer.
    block: u32,
    /// The slot after the last one filled in that superblock.
    next_slot: u32,
    /// Places, and pending writes, whose stripe is not complete.
    places: Vec<u32>,
    writes: Vec<u64>,
}

impl OpenStripe {
    fn none() -> Self {
        Self { block: NONE, next_slot: 0, places: Vec::new(), writes: Vec::new() }
    }

    /// Whether a slot of `block` is in the write buffer because its stripe is not full. Only the
    /// last stripe of the superblock is open, and `next_slot` lies in it.
    fn holds(&self, block: u32, end_slot: u32, slots_per_stripe: u32) -> bool {
        !self.places.is_empty()
            && block == self.block
            && end_slot > self.next_slot - self.next_slot % slots_per_stripe
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Array {
    dies_per_pool: u32,
    slots_per_block: u32,
    pub slots_per_stripe: u32,
    slots_per_page: u32,
    slot_bytes: u32,
    blocks_per_pool: u32,
    pub read_ns: u64,
    pub program_ns: u64,
    erase_ns: u64,
    suspend: SuspendRule,
    channel_ps_per_byte: u64,
    stripe_ns: u64,
    dies: Vec<Die>,
    channels: Vec<Calendar>,
    /// No call asks for a time before this one: what ended by then is forgotten.
    pub horizon: u64,
    /// When the data being written is in the buffer.
    pub host_time: u64,
    /// Of the stream that the host writes to.
    open: OpenStripe,
    stream: usize,
    /// Of the other streams, by stream.
    parked: Vec<OpenStripe>,
    /// Page (as slot / slots_per_page) of the last unit cleaning read: one read serves a page.
    last_read_page: u32,
    /// When that read ends.
    last_read_done: u64,
    /// When the unit that took each place of the write buffer was programmed. A place holds one
    /// slot: of a compressing controller a granule, otherwise a unit.
    places: Vec<u64>,
    next_place: usize,
    /// Pending writes that the unit the host appends next makes durable.
    pub incoming: Vec<u64>,
    /// When the last complete stripe of host data will be programmed, over all of them.
    pub host_done: u64,
    pub(super) pending: Pending,
    /// By die, programs around the present, kept only where one may ruin its neighbor.
    pub scheduled: Option<Vec<VecDeque<Scheduled>>>,
    map_journal_units: u32,
    journal_due: u32,
    journal_die: u32,
    pub map_programs: u64,
    /// A read needs retries when 32 random bits are below this.
    retry_below: u64,
    retry_ns: u64,
    chance: Chance,
    /// Reads of each superblock since it was erased or moved; none where reads disturb nothing.
    reads_of: Vec<u32>,
    disturb_reads: u32,
    /// A superblock that was read too often since.
    pub disturbed: Option<u32>,
}

impl Array {
    pub(crate) fn new(flash: &FlashSpec, seed: u64) -> Self {
        let layout = flash.layout();
        let dies = layout.pools * layout.dies_per_pool;
        let stripe_bytes = u64::from(layout.slots_per_stripe) * u64::from(layout.slot_bytes);
        let channel_ps_per_byte = ps_per_byte(flash.timing.channel_mb_s);
        let stripe = u64::from(layout.slots_per_stripe);
        // At least a stripe for every die, or programs could not overlap. And two stripes with a
        // unit that begins in one and ends in the next, or a place could wait for its own stripe.
        let least = (stripe * u64::from(dies)).max(2 * stripe + u64::from(layout.slots_per_unit));
        // Open stripes of other streams hold places for as long as they like.
        let held = stripe * u64::from(layout.streams - 1);
        let places = (flash.cache.bytes / u64::from(layout.slot_bytes)).max(least + held) as usize;
        let keeps_schedule = flash.cache.paired_pages && flash.cache.plp != Plp::Full;
        Self {
            dies_per_pool: layout.dies_per_pool,
            slots_per_block: layout.slots_per_block,
            slots_per_stripe: layout.slots_per_stripe,
            slots_per_page: layout.slots_per_page,
            slot_bytes: layout.slot_bytes,
            blocks_per_pool: layout.blocks_per_pool,
            read_ns: ns(flash.timing.read_us),
            program_ns: ns(flash.timing.program_us),
            erase_ns: ns(flash.timing.erase_us),
            suspend: SuspendRule {
                suspend: flash.timing.suspend,
                cost_ns: ns(flash.timing.suspend_us),
            },
            channel_ps_per_byte,
            stripe_ns: stripe_bytes * channel_ps_per_byte / 1000,
            dies: vec![Die::idle(0); dies as usize],
            channels: vec![Calendar::default(); flash.geometry.channels as usize],
            horizon: 0,
            host_time: 0,
            open: OpenStripe::none(),
            stream: 0,
            parked: vec![OpenStripe::none(); layout.streams as usize],
            last_read_page: NONE,
            last_read_done: 0,
            places: vec![0; places],
            next_place: 0,
            incoming: Vec::new(),
            host_done: 0,
            pending: Pending::new(flash),
            scheduled: keeps_schedule.then(|| vec![VecDeque::new(); dies as usize]),
            map_journal_units: flash.ftl.map_journal_units,
            journal_due: 0,
            journal_die: 0,
            map_programs: 0,
            retry_below: (flash.timing.retry_fraction * 4_294_967_296.0) as u64,
            retry_ns: ns(flash.timing.read_us * f64::from(flash.timing.retry_reads)),
            chance: Chance::derive(seed, "read retry"),
            reads_of: match flash.ftl.read_disturb_reads {
                0 => Vec::new(),
                _ => vec![0; (layout.pools * layout.blocks_per_pool) as usize],
            },
            disturb_reads: flash.ftl.read_disturb_reads,
            disturbed: None,
        }
    }

    pub(crate) fn die_count(&self) -> u32 {
        self.dies.len() as u32
    }

    /// Places of the write buffer.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    /// What the host writes from now on belongs to `stream`.
    pub(crate) fn select_stream(&mut self, stream: usize) {
        if stream != self.stream {
            std::mem::swap(&mut self.open, &mut self.parked[self.stream]);
            std::mem::swap(&mut self.open, &mut self.parked[stream]);
            self.stream = stream;
        }
    }

    /// When the write buffer has room for the next unit, which fills `slots`.
    #[inline]
    pub(crate) fn room_at(&self, slots: u32) -> u64 {
        let mut place = self.next_place;
        let mut free = 0;
        for _ in 0..slots {
            place = self.not_held(place);
            free = free.max(self.places[place]);
            place = self.place_after(place);
        }
        free
    }

    #[inline]
    fn place_after(&self, place: usize) -> usize {
        if place + 1 == self.places.len() { 0 } else { place + 1 }
    }

    /// The first place from `place` on that no open stripe holds. There are more places than open
    /// stripes have units.
    #[inline]
    fn not_held(&self, mut place: usize) -> usize {
        while self.places[place] == HELD {
            place = self.place_after(place);
        }
        place
    }

    /// Gives the unit just appended the next places.
    #[inline]
    pub(crate) fn take_places(&mut self, slots: u32) {
        for _ in 0..slots {
            let place = self.not_held(self.next_place);
            self.open.places.push(place as u32);
            self.places[place] = HELD;
            self.next_place = self.place_after(place);
        }
        self.open.writes.append(&mut self.incoming);
    }

    /// First slots of the stripes programmed just before one that is being programmed at `now`.
    pub(crate) fn neighbors_of_interrupted(&self, now: u64) -> Vec<u32> {
        let queues = self.scheduled.iter().flatten();
        let neighbor = |queue: &VecDeque<Scheduled>| {
            let next = queue.iter().position(|program| program.done > now)?;
            let started = queue[next].done - self.program_ns <= now;
            (started && next > 0).then(|| queue[next - 1].slot)
        };
        queues.filter_map(neighbor).collect()
    }

    /// Whether a unit of the write buffer waits for its stripe to fill.
    pub(crate) fn has_open_stripe(&self) -> bool {
        !self.open.places.is_empty()
    }

    /// Whether a unit of any stream does.
    pub(crate) fn has_open_stripes(&self) -> bool {
        self.has_open_stripe() || self.parked.iter().any(|open| !open.places.is_empty())
    }

    /// When all dies have done what is queued.
    pub(crate) fn all_free(&self) -> u64 {
        self.dies.iter().map(Die::free).max().unwrap_or(0)
    }

    #[inline]
    fn die_of(&self, slot: u32) -> usize {
        let block = slot / self.slots_per_block;
        let stripe = (slot - block * self.slots_per_block) / self.slots_per_stripe;
        ((block / self.blocks_per_pool) * self.dies_per_pool + stripe % self.dies_per_pool) as usize
    }

    /// Busy time of all dies up to `now`.
    pub(crate) fn busy_until(&self, now: u64) -> BusyTimes {
        self.dies.iter().map(|die| die.busy_until(now)).fold(BusyTimes::default(), |sum, die| {
            BusyTimes {
                read_ns: sum.read_ns + die.read_ns,
                program_ns: sum.program_ns + die.program_ns,
                erase_ns: sum.erase_ns + die.erase_ns,
            }
        })
    }

    /// A die and its channel, without what is over.
    #[inline]
    fn die_and_channel(&mut self, die: usize) -> (&mut Die, &mut Calendar) {
        let channel = die % self.channels.len();
        let (die, channel) = (&mut self.dies[die], &mut self.channels[channel]);
        die.forget_before(self.horizon);
        channel.forget_before(self.horizon);
        (die, channel)
    }

    /// Queues the program of a stripe whose data is ready at `ready`. Returns when it is done.
    #[inline]
    fn program_stripe(&mut self, die: usize, ready: u64) -> u64 {
        self.program_for(die, ready, self.program_ns)
    }

    #[inline]
    fn program_for(&mut self, die: usize, ready: u64, program_ns: u64) -> u64 {
        let stripe_ns = self.stripe_ns;
        let (die, channel) = self.die_and_channel(die);
        let register_free = ready.max(die.last_start());
        let carried = channel.reserve(register_free, stripe_ns);
        die.append(Work::Program, carried, program_ns)
    }

    /// A stripe is full: programs it and notes when its places and writes are done.
    fn finish_stripe(&mut self, first_slot: u32, block: u32, ready: u64) {
        let die = self.die_of(first_slot);
        let done = self.program_stripe(die, ready);
        if let Some(scheduled) = &mut self.scheduled {
            let queue = &mut scheduled[die];
            // The one before the program in progress is needed, no older ones.
            while queue.len() > 2 && queue[1].done < self.host_time {
                queue.pop_front();
            }
            queue.push_back(Scheduled { done, slot: first_slot });
        }
        if block != self.open.block {
            return;
        }
        self.settle(done);
    }

    /// What is in the open stripe is on flash at `done`.
    fn settle(&mut self, done: u64) {
        for &place in &self.open.places {
            self.places[place as usize] = done;
        }
        self.open.places.clear();
        for &write in &self.open.writes {
            self.pending.programmed(write, done);
        }
        self.open.writes.clear();
        self.host_done = self.host_done.max(done);
    }

    /// Programs a stripe of the pSLC cache; stripes take the dies in turn.
    pub(crate) fn program_pslc(&mut self, stripe: u64, program_ns: u64) {
        let die = self.die_of_stripe(stripe);
        let done = self.program_for(die, self.host_time, program_ns);
        self.settle(done);
    }

    fn die_of_stripe(&self, stripe: u64) -> usize {
        (stripe % self.dies.len() as u64) as usize
    }

    /// The host reads a unit of the pSLC cache. Returns when its data is in the controller.
    pub(crate) fn read_pslc(&mut self, stripe: u64, read_ns: u64, now: u64) -> u64 {
        let (bytes_ns, suspend) = (self.bytes_ns(1), self.suspend);
        let (die, channel) = self.die_and_channel(self.die_of_stripe(stripe));
        let ready = die.read(now, read_ns, suspend);
        channel.reserve(ready, bytes_ns)
    }

    /// A stripe of the pSLC cache is read in order to move it on.
    pub(crate) fn fold_read(&mut self, stripe: u64, read_ns: u64) {
        let (host_time, stripe_ns) = (self.host_time, self.stripe_ns);
        let (die, channel) = self.die_and_channel(self.die_of_stripe(stripe));
        let done = die.append(Work::CleanRead, host_time, read_ns);
        channel.reserve(done, stripe_ns);
    }

    /// Blocks of all dies, which were part of the pSLC cache, are erased.
    pub(crate) fn erase_pslc(&mut self) {
        for die in &mut self.dies {
            die.append(Work::Erase, self.host_time, self.erase_ns);
        }
    }

    /// Reads a page of the map. Returns when it is in the controller.
    pub(crate) fn read_map(&mut self, page: u32, now: u64) -> u64 {
        let bytes = u64::from(self.slots_per_page * self.slot_bytes);
        let page_ns = bytes * self.channel_ps_per_byte / 1000;
        let (read_ns, suspend) = (self.read_ns, self.suspend);
        let (die, channel) = self.die_and_channel(page as usize % self.dies.len());
        let ready = die.read(now, read_ns, suspend);
        channel.reserve(ready, page_ns)
    }

    /// One page of map, on the dies in turn.
    pub(crate) fn program_map(&mut self, ready: u64) -> u64 {
        self.journal_die = (self.journal_die + 1) % self.die_count();
        self.map_programs += 1;
        self.program_stripe(self.journal_die as usize, ready)
    }

    /// The host reads a unit's slots. Returns when its data is in the controller. `same_page` is
    /// whether the page was just read for the same request.
    pub(crate) fn host_read(&mut self, slot: u32, slots: u32, same_page: bool, now: u64) -> u64 {
        if self.is_buffered(slot, slots) {
            return now;
        }
        let bytes_ns = self.bytes_ns(slots);
        let (mut read_ns, suspend) = (self.read_ns, self.suspend);
        if self.retry_below > 0 && (self.chance.bits() >> 32) < self.retry_below {
            read_ns += self.retry_ns;
        }
        self.note_disturb(slot, same_page);
        let (die, channel) = self.die_and_channel(self.die_of(slot));
        let ready =
            if same_page { now.max(die.reads_done()) } else { die.read(now, read_ns, suspend) };
        channel.reserve(ready, bytes_ns)
    }

    /// Counts a read of the block of `slot`.
    #[inline]
    fn note_disturb(&mut self, slot: u32, same_page: bool) {
        if self.reads_of.is_empty() || same_page {
            return;
        }
        let block = slot / self.slots_per_block;
        let reads = &mut self.reads_of[block as usize];
        *reads += 1;
        if *reads >= self.disturb_reads {
            *reads = 0;
            self.disturbed = Some(block);
        }
    }

    /// Time a channel takes for the data of slots.
    #[inline]
    fn bytes_ns(&self, slots: u32) -> u64 {
        u64::from(slots * self.slot_bytes) * self.channel_ps_per_byte / 1000
    }

    /// Whether a slot is still in the write buffer because its stripe is not full.
    fn is_buffered(&self, slot: u32, slots: u32) -> bool {
        let (block, end) = (slot / self.slots_per_block, slot + slots);
        self.open.holds(block, end, self.slots_per_stripe)
            || self.parked.iter().any(|open| open.holds(block, end, self.slots_per_stripe))
    }

    /// Two units lie in one page.
    pub(crate) fn same_page(&self, one: u32, other: u32) -> bool {
        one / self.slots_per_page == other / self.slots_per_page
    }

    /// Ends all work at `now`: power is gone. The dies are idle from `idle_from` on.
    pub(crate) fn cut(&mut self, now: u64, idle_from: u64) {
        self.dies.iter_mut().for_each(|die| die.cut(now, idle_from));
        self.channels.iter_mut().for_each(Calendar::clear);
        self.places.fill(idle_from);
        for open in self.parked.iter_mut().chain([&mut self.open]) {
            open.places.clear();
            open.writes.clear();
        }
        self.incoming.clear();
        self.host_time = idle_from;
        self.host_done = idle_from;
        for queue in self.scheduled.iter_mut().flatten() {
            queue.clear();
        }
    }
}

impl Media for Array {
    #[inline]
    fn program(&mut self, slot: u32, slots: u32, origin: Origin) {
        let block = slot / self.slots_per_block;
        if origin == Origin::Host {
            self.open.block = block;
            self.open.next_slot = slot + slots;
        } else if origin == Origin::Fold {
            self.open.block = NONE;
        } else if block == self.open.block {
            self.open.next_slot = slot + slots;
        }
        let first = slot - block * self.slots_per_block;
        let (begin, end) = (first / self.slots_per_stripe, (first + slots) / self.slots_per_stripe);
        let mut taken = false;
        if begin != end {
            let ready = match origin {
                Origin::Clean | Origin::Fold => self.host_time + self.read_ns + self.stripe_ns,
                Origin::Host | Origin::Pad => self.host_time,
            };
            // A unit that ends with the stripe belongs to it; one that begins in it and goes on
            // belongs to the stripe where it ends.
            let ends_here = (first + slots) % self.slots_per_stripe == 0;
            if origin == Origin::Host && ends_here {
                self.take_places(slots);
                taken = true;
            }
            for stripe in begin..end {
                let first_slot = block * self.slots_per_block + stripe * self.slots_per_stripe;
                self.finish_stripe(first_slot, block, ready);
            }
        }
        if origin == Origin::Host && !taken {
            self.take_places(slots);
        }
        if self.map_journal_units > 0 && origin != Origin::Pad {
            self.journal_due += 1;
            if self.journal_due == self.map_journal_units {
                self.journal_due = 0;
                self.program_map(self.host_time);
            }
        }
    }

    #[inline]
    fn read(&mut self, slot: u32, slots: u32) {
        let page = slot / self.slots_per_page;
        let (bytes_ns, read_ns) = (self.bytes_ns(slots), self.read_ns);
        let (host_time, last_read_page) = (self.host_time, self.last_read_page);
        let mut done = self.last_read_done;
        let (die, channel) = self.die_and_channel(self.die_of(slot));
        if page != last_read_page {
            done = die.append(Work::CleanRead, host_time, read_ns);
        }
        channel.reserve(done, bytes_ns);
        (self.last_read_page, self.last_read_done) = (page, done);
    }

    fn erase(&mut self, block: u32) {
        if let Some(reads) = self.reads_of.get_mut(block as usize) {
            *reads = 0;
        }
        let first = (block / self.blocks_per_pool * self.dies_per_pool) as usize;
        for die in &mut self.dies[first..first + self.dies_per_pool as usize] {
            die.append(Work::Erase, self.host_time, self.erase_ns);
        }
        self.last_read_page = NONE;
    }
}
