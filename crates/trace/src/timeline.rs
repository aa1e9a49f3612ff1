//! Timeline: a trace cut into at most [`MAX_SLOTS`] equal spans, however long it is.
//!
//! The rules are those of [`crate::Rules::Dtrace`]: a request is random unless it begins at the end
//! of the one before it on its device, and the first one is compared with byte 0. Flushes and
//! empty requests are not counted.

use forebay_units::Nanos;

use crate::event::{Event, Op, Stage};

/// Spans that are kept. When a trace needs more, each two become one.
const MAX_SLOTS: usize = 256;
/// A span at first.
const LEAST_WIDTH_NS: u64 = 1_000_000;

/// The requests of one span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Requests that did not begin where the one before ended.
    pub random: u64,
    /// Requests.
    pub count: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl Slot {
    fn merge(&mut self, other: Self) {
        self.random += other.random;
        self.count += other.count;
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
    }
}

/// A trace over time.
#[derive(Clone, Debug)]
pub struct Timeline {
    stage: Stage,
    /// The end of the latest request of each device.
    ends: Vec<u64>,
    start: Option<Nanos>,
    width: Nanos,
    slots: Vec<Slot>,
}

impl Timeline {
    /// Nothing counted yet; requests will count at `stage`, and those of [`Stage::Request`] always.
    #[must_use]
    pub fn new(stage: Stage) -> Self {
        let width = Nanos(LEAST_WIDTH_NS);
        Self { stage, ends: Vec::new(), start: None, width, slots: Vec::new() }
    }

    /// Counts an event.
    pub fn event(&mut self, event: &Event) {
        let start = *self.start.get_or_insert(event.time);
        let is_counted = event.stage == self.stage || event.stage == Stage::Request;
        if !is_counted || !event.has_position() {
            return;
        }
        let device = event.device.0 as usize;
        if device >= self.ends.len() {
            self.ends.resize(device + 1, 0);
        }
        let is_random = event.offset_bytes != self.ends[device];
        self.ends[device] = event.end_bytes();
        // A record that is older than the first one counts with it.
        let passed = event.time.since(start).0;
        while passed / self.width.0 >= MAX_SLOTS as u64 {
            self.fold();
        }
        let at = (passed / self.width.0) as usize;
        if at >= self.slots.len() {
            self.slots.resize(at + 1, Slot::default());
        }
        let moved = |op| if event.op == op { event.len_bytes } else { 0 };
        self.slots[at].merge(Slot {
            random: u64::from(is_random),
            count: 1,
            read_bytes: moved(Op::Read),
            written_bytes: moved(Op::Write),
        });
    }

    /// Makes one span of each two.
    fn fold(&mut self) {
        self.width = Nanos(self.width.0.saturating_mul(2));
        let pairs = self.slots.chunks(2).map(|pair| {
            let mut whole = pair[0];
            pair[1..].iter().for_each(|slot| whole.merge(*slot));
            whole
        });
        self.slots = pairs.collect();
    }

    /// How long a span is.
    #[must_use]
    pub fn width(&self) -> Nanos {
        self.width
    }

    /// The spans from the trace's first event on, also those without a request.
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

#[cfg(test)]
mod tests;
