//! How many records a minute each analysis takes from each kind of format, on one core.
//!
//! `cargo run --release -p forebay-trace --example throughput`

#![allow(clippy::disallowed_methods, reason = "a measurement needs the clock")]

use std::io::{Cursor, Write};
use std::time::Instant;

use forebay_trace::{
    Converter, Pattern, PatternOptions, ReadOptions, Rules, SeekKey, SeekOptions, Seeks, Source,
    Stage, SummaryBuilder, Target,
};
use forebay_units::Nanos;

const RECORDS: u64 = 2_000_000;

/// A table of reads and writes, two thirds of them at places that look random.
fn table() -> Vec<u8> {
    let mut text = b"time_ns,device,op,start_sector,sectors,flags\n".to_vec();
    let (mut state, mut next) = (1u64, 0u64);
    for at in 0..RECORDS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let sector = if state >> 62 == 0 { next } else { (state >> 33) & !7 };
        let op = if state >> 40 & 1 == 0 { 'R' } else { 'W' };
        writeln!(text, "{},{},{op},{sector},8,", at * 10_000, state >> 60).expect("memory");
        next = sector + 8;
    }
    text
}

fn converted(table: &[u8], target: Target) -> Vec<u8> {
    let mut source = open(table.to_vec());
    let mut out = Vec::new();
    let mut converter = Converter::new(target, &mut out, Stage::Request, true).expect("memory");
    while let Some(event) = source.next() {
        converter.event(&event, source.names()).expect("memory");
    }
    converter.finish(source.names()).expect("memory");
    out
}

fn open(bytes: Vec<u8>) -> Source {
    Source::open(Box::new(Cursor::new(bytes)), ReadOptions::default()).expect("a trace")
}

/// Reads all of `bytes` through `work`, and prints the rate.
fn measure(format: &str, analysis: &str, bytes: &[u8], work: impl FnOnce(Source)) {
    let source = open(bytes.to_vec());
    let begun = Instant::now();
    work(source);
    let secs = begun.elapsed().as_secs_f64();
    let millions = RECORDS as f64 / 1e6 / secs * 60.0;
    println!("{format:<10} {analysis:<10} {millions:>8.0} million records a minute");
}

fn main() {
    let table = table();
    let packed = {
        let fast = flate2::Compression::fast();
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), fast);
        packer.write_all(&table).expect("memory");
        packer.finish().expect("memory")
    };
    let own = converted(&table, Target::Forebay);
    let ascii = converted(&table, Target::Disksim);
    println!("{:.1} bytes a record in the own format", own.len() as f64 / RECORDS as f64);
    let stage = Stage::Request;
    let formats = [("csv", &table), ("csv.gz", &packed), ("disksim", &ascii), ("forebay", &own)];
    for (format, bytes) in formats {
        measure(format, "read", bytes, |source| assert_eq!(source.count() as u64, RECORDS));
        measure(format, "iopattern", bytes, |source| {
            let interval = Some(Nanos::from_secs(1));
            let (rules, only, counts_empty) = (Rules::Dtrace, None, false);
            let options = PatternOptions { rules, interval, stage, only, counts_empty };
            let (mut pattern, mut rows) = (Pattern::new(options), Vec::new());
            source.for_each(|event| pattern.event(&event, &mut rows));
            pattern.finish(&mut rows);
        });
        measure(format, "seeksize", bytes, |source| {
            let (key, only) = (SeekKey::ThreadAndDevice, None);
            let options = SeekOptions { key, is_signed: false, stage, only, counts_empty: false };
            let mut seeks = Seeks::new(options);
            source.for_each(|event| seeks.event(&event));
        });
        measure(format, "summary", bytes, |source| {
            let mut builder = SummaryBuilder::new(stage);
            source.for_each(|event| builder.event(&event));
            assert_eq!(builder.finish().records, RECORDS);
        });
    }
}
