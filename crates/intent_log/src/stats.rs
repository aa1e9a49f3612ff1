//! Counters of the log.

use std::collections::BTreeMap;

use forebay_units::{FrameSeq, Nanos};

/// Counters of a log since its start, and its fill level now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Frames with records that were issued.
    pub frames: u64,
    /// Frames without records, which say that those before them were durable. They are in no other
    /// figure but `sequential_frames` and `wraps`.
    pub closing_frames: u64,
    /// Device writes issued: frames times sides.
    pub device_writes: u64,
    /// Bytes of those device writes.
    pub device_write_bytes: u64,
    /// Bytes of record data in the frames, counted once for all sides.
    pub payload_bytes: u64,
    /// Bytes of the frames, counted once for all sides.
    pub frame_bytes: u64,
    /// Records in the frames; a split record counts once for each part.
    pub records: u64,
    /// Frames that started where the previous frame of their ring ended.
    pub sequential_frames: u64,
    /// Times that a ring wrapped to its start.
    pub wraps: u64,
    /// Records that reached no frame because their group was committed first.
    pub records_overtaken: u64,
    /// Frames by length: entry i counts those of at most 4096 << i bytes.
    pub frames_by_len: [u64; 9],
    /// Frames by records: entry i counts those of at most 1 << i records.
    pub frames_by_records: [u64; 16],
    /// Frames in flight now.
    pub frames_in_flight: u64,
    /// Records that wait for a frame now.
    pub queued_records: u64,
    /// Bytes of data that wait for a frame now.
    pub queued_bytes: u64,
    /// Space in use now, in bytes.
    pub used_bytes: u64,
    /// Total space, in bytes.
    pub capacity_bytes: u64,
    /// Device writes that failed.
    pub write_errors: u64,
}

impl LogStats {
    pub(crate) fn note_frame(&mut self, len_bytes: u64, records: usize, sides: usize) {
        self.frames += 1;
        self.device_writes += sides as u64;
        self.device_write_bytes += len_bytes * sides as u64;
        self.frame_bytes += len_bytes;
        self.records += records as u64;
        let by_len = (len_bytes / 4096).next_power_of_two().trailing_zeros() as usize;
        self.frames_by_len[by_len.min(8)] += 1;
        let by_records = records.next_power_of_two().trailing_zeros() as usize;
        self.frames_by_records[by_records.min(15)] += 1;
    }
}

/// How long the frames of a short time took, from their issue until every side had them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentFrames {
    /// The median of those that ended.
    pub median: Option<Nanos>,
    /// The longest, those in flight included.
    pub longest: Nanos,
}

/// A frame, among all that a log has had: the generation of its rings, and its number.
type Frame = (u64, FrameSeq);

/// Latencies of frames: those of the last that ended, and when those in flight began.
#[derive(Default)]
pub(crate) struct FrameTimes {
    begun: BTreeMap<Frame, Nanos>,
    last: Vec<Nanos>,
    next: usize,
    longest: Nanos,
}

impl FrameTimes {
    /// Latencies that are kept.
    const MOST: usize = 64;

    pub(crate) fn begin(&mut self, frame: Frame, now: Nanos) {
        self.begun.insert(frame, now);
    }

    pub(crate) fn end(&mut self, frame: Frame, now: Nanos) {
        let Some(begun) = self.begun.remove(&frame) else { return };
        let latency = now.since(begun);
        self.longest = self.longest.max(latency);
        if self.last.len() < Self::MOST {
            self.last.push(latency);
        } else {
            self.last[self.next % Self::MOST] = latency;
            self.next += 1;
        }
    }

    /// What ended since the last call, and the ages of what is in flight.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<RecentFrames> {
        self.next = 0;
        let in_flight = self.begun.values().map(|begun| now.since(*begun)).max();
        let longest = std::mem::take(&mut self.longest);
        if self.last.is_empty() {
            return in_flight.map(|longest| RecentFrames { median: None, longest });
        }
        let middle = self.last.len() / 2;
        let median = Some(*self.last.select_nth_unstable(middle).1);
        self.last.clear();
        Some(RecentFrames { median, longest: longest.max(in_flight.unwrap_or_default()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_frames_are_those_since_the_last_look() {
        let mut times = FrameTimes::default();
        let at = |us: u64| Nanos::from_micros(us);
        assert_eq!(times.take(at(0)), None);
        for (number, took) in [(1, 30), (2, 10), (3, 20)] {
            times.begin((1, FrameSeq(number)), at(100));
            times.end((1, FrameSeq(number)), at(100 + took));
        }
        times.begin((1, FrameSeq(4)), at(110));
        let seen = times.take(at(135));
        assert_eq!(seen, Some(RecentFrames { median: Some(at(20)), longest: at(30) }));
        // One is in flight all the time, and none ended.
        let seen = times.take(at(200));
        assert_eq!(seen, Some(RecentFrames { median: None, longest: at(90) }));
        // The number may be used again with other rings.
        times.begin((2, FrameSeq(4)), at(200));
        times.end((2, FrameSeq(4)), at(205));
        let seen = times.take(at(210));
        assert_eq!(seen, Some(RecentFrames { median: Some(at(5)), longest: at(100) }));
        // Only the last frames count for the median.
        for (late, median) in [(30, 2), (64, 1)] {
            for number in 0..FrameTimes::MOST as u64 + late {
                times.begin((3, FrameSeq(number)), at(0));
                times.end((3, FrameSeq(number)), at(if number < 64 { 2 } else { 1 }));
            }
            let seen = times.take(at(210)).and_then(|seen| seen.median);
            assert_eq!(seen, Some(at(median)));
        }
    }
}
