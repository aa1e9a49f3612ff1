//! Metrics as the protocol buffers of Prometheus (io.prometheus.client), each family with its
//! length before it: the only form in which Prometheus takes native histograms.

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counter.
    Counter = 0,
    /// Gauge.
    Gauge = 1,
    /// Histogram.
    Histogram = 4,
}

/// Growth of the buckets of native histograms: 2^(2^-3), which is 9 %.
pub const SCHEMA: i32 = 3;
/// Times below this are zero.
const ZERO_SECONDS: f64 = 1e-9;

/// A histogram: classic buckets, their number, their sum, and native buckets by their index.
pub struct Histogram<'a> {
    /// Upper bounds of the classic buckets.
    pub bounds: &'a [f64],
    /// How many were at most as large as each.
    pub at_most: &'a [u64],
    /// All of them.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// Index and count of each native bucket that is not empty, in rising order.
    pub native: &'a [(i32, u64)],
}

/// A message.
#[derive(Default)]
pub struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    fn integer(&mut self, field: u32, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    fn signed(&mut self, field: u32, value: i64) {
        self.integer(field, (value << 1 ^ value >> 63) as u64);
    }

    fn double(&mut self, field: u32, value: f64) {
        self.key(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u32, message: &Self) {
        self.bytes(field, &message.0);
    }

    /// A family without samples.
    pub fn family(name: &str, help: &str, kind: Kind) -> Self {
        let mut family = Self::default();
        family.bytes(1, name.as_bytes());
        family.bytes(2, help.as_bytes());
        family.integer(3, kind as u64);
        family
    }

    /// Adds a sample of a counter or a gauge to a family.
    pub fn add(&mut self, kind: Kind, labels: &[(&str, &str)], value: f64) {
        let mut metric = metric(labels);
        let mut number = Self::default();
        number.double(1, value);
        metric.message(if kind == Kind::Gauge { 2 } else { 3 }, &number);
        self.message(4, &metric);
    }

    /// Adds a histogram to a family.
    pub fn add_histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram<'_>) {
        let mut out = Self::default();
        out.integer(1, histogram.count);
        out.double(2, histogram.sum);
        for (bound, at_most) in histogram.bounds.iter().zip(histogram.at_most) {
            let mut bucket = Self::default();
            bucket.integer(1, *at_most);
            bucket.double(2, *bound);
            out.message(3, &bucket);
        }
        out.signed(5, i64::from(SCHEMA));
        out.double(6, ZERO_SECONDS);
        out.integer(7, 0);
        out.native(histogram.native);
        let mut metric = metric(labels);
        metric.message(7, &out);
        self.message(4, &metric);
    }

    /// Spans of buckets that follow each other, and the change from each bucket to the next.
    fn native(&mut self, buckets: &[(i32, u64)]) {
        let mut spans: Vec<(i32, u32)> = Vec::new();
        let mut next = 0;
        for (index, _) in buckets {
            match spans.last_mut() {
                Some((_, length)) if *index == next => *length += 1,
                _ => spans.push((*index - next, 1)),
            }
            next = index + 1;
        }
        if spans.is_empty() {
            // An empty span says that there are native buckets, none of which is filled.
            spans.push((0, 0));
        }
        for (offset, length) in spans {
            let mut span = Self::default();
            span.signed(1, i64::from(offset));
            span.integer(2, u64::from(length));
            self.message(12, &span);
        }
        let mut before = 0;
        for (_, count) in buckets {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            self.signed(13, count - before);
            before = count;
        }
    }

    /// Appends the message to `out`, with its length before it.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let mut length = Self::default();
        length.varint(self.0.len() as u64);
        out.extend_from_slice(&length.0);
        out.extend_from_slice(&self.0);
    }
}

fn metric(labels: &[(&str, &str)]) -> Message {
    let mut metric = Message::default();
    for (name, value) in labels {
        let mut pair = Message::default();
        pair.bytes(1, name.as_bytes());
        pair.bytes(2, value.as_bytes());
        metric.message(1, &pair);
    }
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_as_the_format_says() {
        let mut family = Message::family("a", "b", Kind::Counter);
        family.add(Kind::Counter, &[("c", "d")], 1.0);
        let mut out = Vec::new();
        family.append_to(&mut out);
        let one = 1f64.to_le_bytes();
        let counter = [&[0x1a, 9, 9][..], &one].concat();
        let pair = [0x0a, 6, 0x0a, 1, b'c', 0x12, 1, b'd'];
        let metric = [&pair[..], &counter].concat();
        let mut family = vec![0x0a, 1, b'a', 0x12, 1, b'b', 0x18, 0, 0x22, metric.len() as u8];
        family.extend_from_slice(&metric);
        assert_eq!(out, [&[family.len() as u8][..], &family].concat());
    }

    #[test]
    fn native_buckets_are_spans_and_differences() {
        let mut out = Message::default();
        out.native(&[(-3, 5), (-2, 4), (7, 300)]);
        let span = |offset: u8, length: u8| [0x62, 4, 0x08, offset, 0x10, length];
        // Zigzag: -3 is 5, -1 is 1, 8 (from -1 to 7) is 16, 296 is 592 in two bytes.
        let deltas = [0x68, 10, 0x68, 1, 0x68, 0xd0, 0x04];
        assert_eq!(out.0, [&span(5, 2)[..], &span(16, 1), &deltas].concat());
    }
}
