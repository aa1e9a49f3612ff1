//! Block sums in memory: 40 bits, kept in five bytes.

/// Bytes of a sum.
pub(crate) const SUM_LEN: usize = 5;

/// Sums of consecutive blocks as a leaf holds them; no bytes when they are in the footer.
#[derive(Clone, Copy)]
pub(crate) struct SumBytes<'a> {
    pub(crate) bytes: &'a [u8],
    /// Bytes from one sum to the next.
    pub(crate) stride: usize,
}

impl<'a> SumBytes<'a> {
    pub(crate) const SEALED: SumBytes<'static> = SumBytes { bytes: &[], stride: 0 };

    pub(crate) fn iter(self, blocks: u32) -> impl Iterator<Item = [u8; 5]> + 'a {
        (0..blocks as usize)
            .map(move |i| self.bytes[i * self.stride..][..SUM_LEN].try_into().expect("five bytes"))
    }

    pub(crate) fn skip(self, blocks: u32) -> Self {
        Self { bytes: &self.bytes[blocks as usize * self.stride..], ..self }
    }
}

/// The five bytes of a sum.
#[inline]
pub(crate) fn sum_bytes(sum: u64) -> [u8; 5] {
    assert!(sum >> 40 == 0, "a block sum has 40 bits");
    let [a, b, c, d, e, ..] = sum.to_le_bytes();
    [a, b, c, d, e]
}

/// The number in five bytes.
#[inline]
pub(crate) fn wide(bytes: [u8; 5]) -> u64 {
    let [a, b, c, d, e] = bytes;
    u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])
}
