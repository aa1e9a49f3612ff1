//! Parity kernels: they compute parity columns, and reconstruct lost columns.
//!
//! The matrix is part of the on-disk format and frozen. Over GF(2^8) with the polynomial 0x11d,
//! parity row `r` (P = 0, Q = 1, R = 2) is the sum over data columns `c` of `2^(r*c) * data[c]`. A
//! coefficient does not depend on the number of columns.

mod matrix;

use std::fmt;
use std::sync::Arc;

use matrix::MatrixKernel;

/// Fewer columns are left than data columns are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFewColumns {
    /// Columns present.
    pub have: usize,
    /// Columns needed.
    pub need: usize,
}

impl fmt::Display for TooFewColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} columns of a row are present, {} are needed", self.have, self.need)
    }
}

impl std::error::Error for TooFewColumns {}

/// Computes parity and reconstructs lost columns. Columns are named by role: data columns first,
/// then P, Q, R. All columns of one call have the same length.
pub trait ParityKernel: Send + Sync {
    /// Data columns of a row.
    fn data_columns(&self) -> usize;

    /// Parity columns of a row.
    fn parity_columns(&self) -> usize;

    /// Fills every parity column from all data columns.
    fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]);

    /// Computes the columns of `roles` into `out`, from the first present columns of `columns`. The
    /// columns of `roles` must be absent.
    fn reconstruct(
        &self,
        columns: &[Option<&[u8]>],
        roles: &[usize],
        out: &mut [&mut [u8]],
    ) -> Result<(), TooFewColumns>;
}

/// The kernel for these numbers of data and parity columns. Panics outside 1 to 3 parity columns:
/// the caller checks the geometry first.
#[must_use]
pub fn kernel_for(data_columns: usize, parity_columns: usize) -> Arc<dyn ParityKernel> {
    match parity_columns {
        1 => Arc::new(XorKernel { data_columns }),
        _ => Arc::new(MatrixKernel::new(data_columns, parity_columns)),
    }
}

/// One parity column: XOR computes it, and XOR reconstructs any lost column.
pub struct XorKernel {
    data_columns: usize,
}

/// Bytes of a chunk, which stays in the first-level cache while the columns stream past.
const XOR_CHUNK_BYTES: usize = 8192;

/// `out` becomes the XOR of all `columns`, each as long as `out`.
fn xor_columns(columns: &[&[u8]], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the check above found that this processor has AVX2.
        unsafe { xor_columns_avx2(columns, out) };
        return;
    }
    xor_columns_in_chunks(columns, out);
}

/// The same code, compiled for wider registers.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn xor_columns_avx2(columns: &[&[u8]], out: &mut [u8]) {
    xor_columns_in_chunks(columns, out);
}

#[inline(always)]
fn xor_columns_in_chunks(columns: &[&[u8]], out: &mut [u8]) {
    let len = out.len();
    for start in (0..len).step_by(XOR_CHUNK_BYTES) {
        let end = len.min(start + XOR_CHUNK_BYTES);
        let chunk = &mut out[start..end];
        let part = |column: usize| &columns[column][start..end];
        let mut next = 1;
        if columns.len() == 1 {
            chunk.copy_from_slice(part(0));
        } else {
            for ((out, a), b) in chunk.iter_mut().zip(part(0)).zip(part(1)) {
                *out = a ^ b;
            }
            next = 2;
        }
        // Four columns at a time: each pass over the chunk does more work per load and store.
        while next + 4 <= columns.len() {
            let [a, b, c, d] = [part(next), part(next + 1), part(next + 2), part(next + 3)];
            for ((((out, a), b), c), d) in chunk.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *out ^= a ^ b ^ c ^ d;
            }
            next += 4;
        }
        if next + 2 <= columns.len() {
            let [a, b] = [part(next), part(next + 1)];
            for ((out, a), b) in chunk.iter_mut().zip(a).zip(b) {
                *out ^= a ^ b;
            }
            next += 2;
        }
        if next < columns.len() {
            for (out, a) in chunk.iter_mut().zip(part(next)) {
                *out ^= a;
            }
        }
    }
}

impl ParityKernel for XorKernel {
    fn data_columns(&self) -> usize {
        self.data_columns
    }

    fn parity_columns(&self) -> usize {
        1
    }

    fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        xor_columns(data, parity[0]);
    }

    fn reconstruct(
        &self,
        columns: &[Option<&[u8]>],
        roles: &[usize],
        out: &mut [&mut [u8]],
    ) -> Result<(), TooFewColumns> {
        let have: Vec<&[u8]> = columns.iter().filter_map(|column| *column).collect();
        if have.len() < self.data_columns {
            return Err(TooFewColumns { have: have.len(), need: self.data_columns });
        }
        for (role, out) in roles.iter().zip(out) {
            debug_assert!(columns[*role].is_none(), "column {role} is there");
            xor_columns(&have[..self.data_columns], out);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
