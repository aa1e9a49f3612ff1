use proptest::prelude::*;

use super::{ParityKernel, TooFewColumns, kernel_for};
use crate::geometry::MAX_MEMBERS;

/// The oracle: multiplication bit by bit, independent of the kernels.
fn multiply(a: u8, b: u8) -> u8 {
    let (mut a, mut product) = (u16::from(a), 0u16);
    for bit in 0..8 {
        if b >> bit & 1 == 1 {
            product ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= 0x11d;
        }
    }
    product as u8
}

fn power_of_two(exponent: usize) -> u8 {
    (0..exponent).fold(1, |value, _| multiply(value, 2))
}

fn oracle_parity(data: &[Vec<u8>], parity_columns: usize) -> Vec<Vec<u8>> {
    let len = data[0].len();
    let row = |r: usize| {
        let coefficient: Vec<u8> = (0..data.len()).map(|c| power_of_two(r * c)).collect();
        let at = |i: usize| {
            data.iter().zip(&coefficient).fold(0, |sum, (d, c)| sum ^ multiply(d[i], *c))
        };
        (0..len).map(at).collect()
    };
    (0..parity_columns).map(row).collect()
}

fn encode(kernel: &dyn ParityKernel, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0xee; data[0].len()]; kernel.parity_columns()];
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    kernel.encode(&data, &mut out);
    parity
}

fn pattern(columns: usize, len: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut state = seed | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..columns).map(|_| (0..len).map(|_| next()).collect()).collect()
}

fn lose_and_compare(kernel: &dyn ParityKernel, all: &[Vec<u8>], lost: &[usize]) {
    let columns: Vec<Option<&[u8]>> =
        all.iter().enumerate().map(|(i, c)| (!lost.contains(&i)).then_some(&c[..])).collect();
    let mut back = vec![vec![0x55; all[0].len()]; lost.len()];
    let mut out: Vec<&mut [u8]> = back.iter_mut().map(Vec::as_mut_slice).collect();
    kernel.reconstruct(&columns, lost, &mut out).expect("few enough are lost");
    for (role, column) in lost.iter().zip(&back) {
        assert_eq!(column, &all[*role], "column {role} of {} after losing {lost:?}", all.len());
    }
}

/// Every set of 1 to `most` of `0..n`.
fn subsets(n: usize, most: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    let mut last: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..most {
        let mut grown = Vec::new();
        for set in &last {
            for next in set.last().map_or(0, |l| l + 1)..n {
                let mut set = set.clone();
                set.push(next);
                grown.push(set);
            }
        }
        all.extend(grown.iter().cloned());
        last = grown;
    }
    all
}

#[test]
fn oracle_multiplies_in_the_field() {
    assert_eq!(multiply(2, 0x80), 0x1d);
    assert_eq!(multiply(0x53, 0x8c), 0x01);
    assert_eq!(power_of_two(255), 1);
}

#[test]
fn every_loss_of_every_width_is_reconstructed() {
    for parity_columns in 1..=3 {
        for data_columns in 1..=MAX_MEMBERS - parity_columns {
            let kernel = kernel_for(data_columns, parity_columns);
            let mut all = pattern(data_columns, 16, 7 + data_columns as u64);
            let parity = encode(&*kernel, &all);
            assert_eq!(parity, oracle_parity(&all, parity_columns));
            all.extend(parity);
            for lost in subsets(all.len(), parity_columns) {
                lose_and_compare(&*kernel, &all, &lost);
            }
        }
    }
}

#[test]
fn one_loss_beyond_parity_is_refused() {
    for parity_columns in 1..=3 {
        let kernel = kernel_for(4, parity_columns);
        assert_eq!((kernel.data_columns(), kernel.parity_columns()), (4, parity_columns));
        let mut all = pattern(4, 8, 3);
        all.extend(encode(&*kernel, &all));
        let columns: Vec<Option<&[u8]>> =
            all.iter().enumerate().map(|(i, c)| (i > parity_columns).then_some(&c[..])).collect();
        let mut out = [0u8; 8];
        let refused = kernel.reconstruct(&columns, &[0], &mut [&mut out]);
        assert_eq!(refused, Err(TooFewColumns { have: 3, need: 4 }));
    }
}

// Frozen: pools on disk hold these bytes. A change here changes the on-disk format.
#[test]
fn parity_matches_golden_vectors() {
    let data: Vec<Vec<u8>> = vec![
        vec![0x01, 0x80, 0xff, 0x00],
        vec![0x01, 0x80, 0xff, 0x5a],
        vec![0x01, 0x80, 0xff, 0xa5],
    ];
    assert_eq!(
        encode(&*kernel_for(3, 3), &data),
        GOLDEN.iter().map(|row| row.to_vec()).collect::<Vec<_>>()
    );
    for parity_columns in 1..3 {
        let rows = encode(&*kernel_for(3, parity_columns), &data);
        assert!(rows.iter().zip(GOLDEN).all(|(row, golden)| row[..] == golden[..]));
    }
    let wide: Vec<Vec<u8>> = (0..21).map(|c| vec![(c * 11 + 1) as u8, 0xff - c as u8]).collect();
    assert_eq!(
        encode(&*kernel_for(21, 3), &wide),
        GOLDEN_WIDE.iter().map(|row| row.to_vec()).collect::<Vec<_>>()
    );
}

const GOLDEN: [[u8; 4]; 3] =
    [[0x01, 0x80, 0xff, 0xff], [0x07, 0xa7, 0xc7, 0x1a], [0x15, 0x52, 0x6f, 0xf7]];
const GOLDEN_WIDE: [[u8; 2]; 3] = [[0xe5, 0xeb], [0x06, 0x36], [0xf9, 0x29]];

proptest! {
    #[test]
    fn kernels_agree_with_the_oracle(
        data_columns in 1usize..22,
        parity_columns in 1usize..4,
        len in 1usize..20_000,
        seed: u64,
        losses in prop::collection::btree_set(0usize..22, 1..4),
    ) {
        let kernel = kernel_for(data_columns, parity_columns);
        let mut all = pattern(data_columns, len, seed);
        let parity = encode(&*kernel, &all);
        prop_assert_eq!(&parity, &oracle_parity(&all, parity_columns));
        all.extend(parity);
        let n = all.len();
        let mut lost: Vec<usize> = losses.into_iter().map(|role| role % n).collect();
        lost.sort_unstable();
        lost.dedup();
        lost.truncate(parity_columns);
        lose_and_compare(&*kernel, &all, &lost);
    }
}
