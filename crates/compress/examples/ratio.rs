//! What files would take: compressed in records of 16 KiB, and packed as a pool does it.
//!
//! `cargo run --release -p forebay-compress --example ratio -- FILE...`

use forebay_compress::{Compression, compress};
use forebay_format::packed::{Packer, Unit};
use forebay_units::{BLOCK_LEN, Lba, VolumeId};

const RECORD_LEN: usize = 4 * BLOCK_LEN;

/// Bytes of the records with what each saves, and bytes of packed blocks and of records that are
/// stored as they are.
fn sizes(how: Compression, data: &[u8]) -> (usize, usize) {
    let (mut packer, mut full) = (Packer::new(0), Vec::new());
    let (mut records, mut plain) = (0, 0);
    for (record, bytes) in data.chunks(RECORD_LEN).enumerate() {
        match compress(how, bytes) {
            Some((codec, small)) => {
                records += small.len();
                let (volume, lba) = (VolumeId(1), Lba(record as u64 * 4));
                let blocks = (bytes.len() / BLOCK_LEN) as u8;
                let unit = Unit { volume, lba, blocks, codec, bytes: small };
                packer.push(&unit, |_| true, &mut full).expect("all numbers are free");
            }
            None => {
                records += bytes.len();
                plain += bytes.len();
            }
        }
    }
    full.extend(packer.flush());
    (records, plain + full.len() * BLOCK_LEN)
}

#[allow(clippy::disallowed_methods, reason = "a tool for developers, outside of the engine")]
fn main() {
    println!("{:<28} {:>8} {:>10} {:>10} {:>8}", "file", "codec", "records", "packed", "more");
    for path in std::env::args().skip(1) {
        let mut data = std::fs::read(&path).expect("the file can be read");
        data.truncate(data.len() / BLOCK_LEN * BLOCK_LEN);
        for word in ["lz4", "zstd-1", "zstd", "zstd-9"] {
            let how = Compression::parse(word).expect("it is a value of the property");
            let (records, packed) = sizes(how, &data);
            let of = |bytes: usize| data.len() as f64 / bytes as f64;
            let more = 100.0 * (packed as f64 / records as f64 - 1.0);
            println!(
                "{path:<28} {word:>8} {:>9.2}x {:>9.2}x {more:>7.2}%",
                of(records),
                of(packed)
            );
        }
    }
}
