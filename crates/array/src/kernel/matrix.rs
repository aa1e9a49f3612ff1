//! Two or three parity columns: sums of the data columns, each times a power of two, in GF(2^8).
//!
//! What enters: columns of one length. What leaves: parity, or lost columns. What always holds: the
//! sums run over the columns from the last to the first, so that a row needs no multiplication but
//! that by its own power of two, which a compiler turns into vector instructions.

use super::{ParityKernel, TooFewColumns};
use crate::geometry::MAX_MEMBERS;

/// Most parity columns.
const ROWS_MAX: usize = 3;
/// Bytes of a chunk: four columns and the sums stay in the first-level cache.
const CHUNK_BYTES: usize = 4096;
/// The polynomial of the field without its highest term.
const POLYNOMIAL: u8 = 0x1d;

#[inline(always)]
fn times_two(byte: u8) -> u8 {
    // All ones if the highest bit is set.
    let carry = ((byte as i8) >> 7) as u8;
    (byte << 1) ^ (carry & POLYNOMIAL)
}

/// Times `2^POWER`.
#[inline(always)]
fn shifted<const POWER: usize>(mut byte: u8) -> u8 {
    for _ in 0..POWER {
        byte = times_two(byte);
    }
    byte
}

/// `sum` becomes the sum of `columns`, column `c` times `2^(POWER*c)`. All are of one length.
#[inline(always)]
fn sum_row<const POWER: usize>(mut columns: &[&[u8]], sum: &mut [u8]) {
    sum.fill(0);
    // Four columns at a time: each pass does more work per load and store.
    while let [rest @ .., a, b, c, d] = columns {
        add_four::<POWER>(sum, d, c, b, a);
        columns = rest;
    }
    while let [rest @ .., a] = columns {
        for (sum, a) in sum.iter_mut().zip(*a) {
            *sum = shifted::<POWER>(*sum) ^ a;
        }
        columns = rest;
    }
}

#[inline(always)]
fn add_four<const POWER: usize>(sum: &mut [u8], a: &[u8], b: &[u8], c: &[u8], d: &[u8]) {
    for ((((sum, a), b), c), d) in sum.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        let two = shifted::<POWER>(shifted::<POWER>(*sum) ^ a) ^ b;
        *sum = shifted::<POWER>(shifted::<POWER>(two) ^ c) ^ d;
    }
}

/// Row `row` of the parity of `columns`.
#[inline(always)]
fn sum_of(row: usize, columns: &[&[u8]], sum: &mut [u8]) {
    match row {
        0 => sum_row::<0>(columns, sum),
        1 => sum_row::<1>(columns, sum),
        _ => sum_row::<2>(columns, sum),
    }
}

/// Adds `factor` times `bytes` to `sum`.
#[inline(always)]
fn add_product(factor: u8, bytes: &[u8], sum: &mut [u8]) {
    let masks: [u8; 8] = std::array::from_fn(|bit| 0u8.wrapping_sub(factor >> bit & 1));
    for (sum, byte) in sum.iter_mut().zip(bytes) {
        let (mut shifted, mut product) = (*byte, 0);
        for mask in masks {
            product ^= shifted & mask;
            shifted = times_two(shifted);
        }
        *sum ^= product;
    }
}

fn multiply(a: u8, b: u8) -> u8 {
    let mut product = [0];
    add_product(a, &[b], &mut product);
    product[0]
}

/// The factor of data column `column` in parity row `row`.
fn factor_of(row: usize, column: usize) -> u8 {
    (0..row * column).fold(1, |power, _| times_two(power))
}

fn inverse(byte: u8) -> u8 {
    // The order of the multiplicative group is 255.
    (0..254).fold(1, |power, _| multiply(power, byte))
}

/// A square matrix of as many rows and columns as data columns are lost.
type Square = [[u8; ROWS_MAX]; ROWS_MAX];

/// What gives the lost data columns back from the sums of `rows` over them.
fn solution(rows: &[usize], lost: &[usize]) -> Square {
    let size = lost.len();
    let mut left: Square = [[0; ROWS_MAX]; ROWS_MAX];
    let mut right: Square = [[0; ROWS_MAX]; ROWS_MAX];
    for at in 0..size {
        right[at][at] = 1;
        for (column, role) in lost.iter().enumerate() {
            left[at][column] = factor_of(rows[at], *role);
        }
    }
    for pivot in 0..size {
        // Any choice of up to three rows and columns can be solved; the tests try all of them.
        let from = (pivot..size).find(|row| left[*row][pivot] != 0).expect("a regular matrix");
        left.swap(pivot, from);
        right.swap(pivot, from);
        let scale = inverse(left[pivot][pivot]);
        for column in 0..size {
            left[pivot][column] = multiply(scale, left[pivot][column]);
            right[pivot][column] = multiply(scale, right[pivot][column]);
        }
        for row in (0..size).filter(|row| *row != pivot) {
            let factor = left[row][pivot];
            for column in 0..size {
                left[row][column] ^= multiply(factor, left[pivot][column]);
                right[row][column] ^= multiply(factor, right[pivot][column]);
            }
        }
    }
    right
}

/// Two or three parity columns.
pub(super) struct MatrixKernel {
    data_columns: usize,
    parity_columns: usize,
}

/// Lost columns, and what they are computed from.
struct Loss<'a> {
    /// The data columns; those that are lost have no bytes.
    data: [Option<&'a [u8]>; MAX_MEMBERS],
    data_columns: usize,
    lost: Vec<usize>,
    /// The parity rows that stand for the lost data columns, and their bytes.
    rows: Vec<usize>,
    parity: Vec<&'a [u8]>,
    solution: Square,
}

impl Loss<'_> {
    /// Computes the columns of `roles` into `out`, chunk by chunk.
    #[inline(always)]
    fn reconstruct(&self, roles: &[usize], out: &mut [&mut [u8]]) {
        let len = out.first().map_or(0, |column| column.len());
        let zeros = [0; CHUNK_BYTES];
        let mut sums = [[0; CHUNK_BYTES]; ROWS_MAX];
        let mut back = [[0; CHUNK_BYTES]; ROWS_MAX];
        for start in (0..len).step_by(CHUNK_BYTES) {
            let end = len.min(start + CHUNK_BYTES);
            let bytes = end - start;
            let mut data = [&zeros[..bytes]; MAX_MEMBERS];
            for (chunk, column) in data.iter_mut().zip(&self.data) {
                *chunk = column.map_or(&zeros[..bytes], |column| &column[start..end]);
            }
            let data = &data[..self.data_columns];
            for ((row, parity), sum) in self.rows.iter().zip(&self.parity).zip(&mut sums) {
                let sum = &mut sum[..bytes];
                sum_of(*row, data, sum);
                add_product(1, &parity[start..end], sum);
            }
            for (factors, back) in self.solution.iter().zip(&mut back).take(self.lost.len()) {
                let back = &mut back[..bytes];
                back.fill(0);
                for (factor, sum) in factors.iter().zip(&sums).take(self.lost.len()) {
                    add_product(*factor, &sum[..bytes], back);
                }
            }
            for (role, out) in roles.iter().zip(&mut *out) {
                let out = &mut out[start..end];
                if let Some(at) = self.lost.iter().position(|lost| lost == role) {
                    out.copy_from_slice(&back[at][..bytes]);
                    continue;
                }
                let row = role - self.data_columns;
                sum_of(row, data, out);
                for (lost, back) in self.lost.iter().zip(&back) {
                    add_product(factor_of(row, *lost), &back[..bytes], out);
                }
            }
        }
    }

    /// The same code, compiled for wider registers.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn reconstruct_avx2(&self, roles: &[usize], out: &mut [&mut [u8]]) {
        self.reconstruct(roles, out);
    }
}

/// Fills every parity column, chunk by chunk.
#[inline(always)]
fn encode_in_chunks(data: &[&[u8]], parity: &mut [&mut [u8]]) {
    let len = parity.first().map_or(0, |column| column.len());
    for start in (0..len).step_by(CHUNK_BYTES) {
        let end = len.min(start + CHUNK_BYTES);
        let mut chunks: [&[u8]; MAX_MEMBERS] = [&[]; MAX_MEMBERS];
        for (chunk, column) in chunks.iter_mut().zip(data) {
            *chunk = &column[start..end];
        }
        for (row, out) in parity.iter_mut().enumerate() {
            sum_of(row, &chunks[..data.len()], &mut out[start..end]);
        }
    }
}

/// The same code, compiled for wider registers.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn encode_avx2(data: &[&[u8]], parity: &mut [&mut [u8]]) {
    encode_in_chunks(data, parity);
}

impl MatrixKernel {
    pub(super) fn new(data_columns: usize, parity_columns: usize) -> Self {
        assert!((2..=ROWS_MAX).contains(&parity_columns), "checked geometry");
        assert!((1..=MAX_MEMBERS).contains(&data_columns), "checked geometry");
        Self { data_columns, parity_columns }
    }
}

impl ParityKernel for MatrixKernel {
    fn data_columns(&self) -> usize {
        self.data_columns
    }

    fn parity_columns(&self) -> usize {
        self.parity_columns
    }

    fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!((data.len(), parity.len()), (self.data_columns, self.parity_columns));
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the check above found that this processor has AVX2.
            unsafe { encode_avx2(data, parity) };
            return;
        }
        encode_in_chunks(data, parity);
    }

    fn reconstruct(
        &self,
        columns: &[Option<&[u8]>],
        roles: &[usize],
        out: &mut [&mut [u8]],
    ) -> Result<(), TooFewColumns> {
        let have = columns.iter().flatten().count();
        if have < self.data_columns {
            return Err(TooFewColumns { have, need: self.data_columns });
        }
        let (columns, parity) = columns.split_at(self.data_columns);
        let mut data = [None; MAX_MEMBERS];
        data[..columns.len()].copy_from_slice(columns);
        let is_lost = |column: &usize| columns[*column].is_none();
        let lost: Vec<usize> = (0..self.data_columns).filter(is_lost).collect();
        let rows = parity.iter().enumerate().filter_map(|(row, bytes)| bytes.map(|b| (row, b)));
        let (rows, parity): (Vec<usize>, Vec<&[u8]>) = rows.take(lost.len()).unzip();
        let solution = solution(&rows, &lost);
        let data_columns = self.data_columns;
        let loss = Loss { data, data_columns, lost, rows, parity, solution };
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the check above found that this processor has AVX2.
            unsafe { loss.reconstruct_avx2(roles, out) };
            return Ok(());
        }
        loss.reconstruct(roles, out);
        Ok(())
    }
}
