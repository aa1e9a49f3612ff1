//! Streams of host data: each has an open superblock, and its own place among the pools.

use super::Ssd;

impl Ssd {
    /// What is written from now on belongs to `stream`. One that the device does not have is
    /// stream 0.
    #[inline]
    pub(super) fn select_stream(&mut self, stream: usize) {
        let stream = if stream < self.pool_of_stream.len() { stream } else { 0 };
        if stream != self.stream {
            self.pool_of_stream[self.stream] = self.pool;
            self.pool = self.pool_of_stream[stream];
            self.ftl.select_stream(stream);
            self.array.select_stream(stream);
            self.stream = stream;
        }
    }

    /// Programs the open stripes of all streams as they are.
    pub(super) fn pad_open_stripes(&mut self) {
        for stream in 0..self.pool_of_stream.len() {
            self.select_stream(stream);
            if self.array.has_open_stripe() {
                self.pad_open_stripe();
            }
        }
    }

    fn pad_open_stripe(&mut self) {
        match &mut self.pslc {
            Some(pslc) => {
                if let Some(stripe) = pslc.pad() {
                    self.array.program_pslc(stripe, pslc.program_ns);
                }
            }
            None => self.ftl.pad_stripe(self.pool, self.array.slots_per_stripe, &mut self.array),
        }
    }
}
