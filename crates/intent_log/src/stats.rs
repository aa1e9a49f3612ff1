//! Counters of the log.

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
