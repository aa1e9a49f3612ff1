//! Measures the parity kernels: encoding and reconstruction, in GB of source data a second on one
//! core: `cargo run --release -p forebay-array --example parity_speed`.
#![allow(clippy::disallowed_methods)] // An offline tool that measures real time.

use std::hint::black_box;
use std::time::Instant;

use forebay_array::kernel::kernel_for;

fn gigabytes_a_second(bytes: usize, mut work: impl FnMut()) -> f64 {
    work();
    let mut best = 0.0f64;
    for _ in 0..5 {
        let (begun, mut rounds) = (Instant::now(), 0u32);
        while begun.elapsed().as_millis() < 60 {
            work();
            rounds += 1;
        }
        best = best.max(f64::from(rounds) * bytes as f64 / begun.elapsed().as_secs_f64() / 1e9);
    }
    best
}

fn main() {
    println!("shape   column KiB   encode GB/s   one column back GB/s");
    for (data, parity) in [(3, 1), (4, 1), (15, 1), (4, 2), (8, 2), (14, 2), (8, 3), (13, 3)] {
        for column_kib in [16, 64, 512] {
            let len = column_kib << 10;
            let columns: Vec<Vec<u8>> =
                (0..data).map(|c| (0..len).map(|i| (i * 31 + c * 7) as u8).collect()).collect();
            let sources: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
            let mut rows = vec![vec![0; len]; parity];
            let kernel = kernel_for(data, parity);
            let encode = gigabytes_a_second(len * data, || {
                let mut out: Vec<&mut [u8]> = rows.iter_mut().map(Vec::as_mut_slice).collect();
                kernel.encode(black_box(&sources), black_box(&mut out));
            });
            let all = sources.iter().copied().chain(rows.iter().map(Vec::as_slice));
            let mut left: Vec<Option<&[u8]>> = all.map(Some).collect();
            left[0] = None;
            let mut back = vec![0; len];
            let recover = gigabytes_a_second(len * data, || {
                let mut out = [&mut back[..]];
                kernel.reconstruct(black_box(&left), &[0], &mut out).expect("one is missing");
            });
            assert_eq!(back, columns[0]);
            println!("{data:>2}+{parity} {column_kib:>12} {encode:>13.1} {recover:>12.1}");
        }
    }
}
