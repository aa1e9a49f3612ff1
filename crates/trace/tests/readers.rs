//! Readers: what each format's columns mean, damage, and bytes that are no trace at all.

#![allow(clippy::disallowed_methods, reason = "what the tests share opens files itself")]

mod common;

use std::io::{self, Read, Write};

use common::samples::sample;
use common::{compact, convert, drain, source};
use forebay_trace::{
    Damage, Event, Flags, Format, Op, ReadOptions, Rest, Source, Stage, Target, TimeUnit,
    TraceError,
};
use forebay_units::Nanos;
use proptest::prelude::*;

fn read(format: Format) -> (Vec<Event>, Vec<String>) {
    let mut source = source(sample(format), None).unwrap();
    assert_eq!(source.format(), format, "the format is recognized");
    let events: Vec<Event> = source.by_ref().collect();
    let (names, remarks) = source.into_remarks();
    assert!(remarks.is_clean(), "{format}: {remarks}");
    (events, names.devices().to_vec())
}

/// Time, operation, offset, length, device: what every format has.
fn brief(format: Format) -> Vec<(u64, Op, u64, u64, String)> {
    let (events, devices) = read(format);
    let device = |event: &Event| devices[event.device.0 as usize].clone();
    let brief = |e: &Event| (e.time.0, e.op, e.offset_bytes, e.len_bytes, device(e));
    events.iter().map(brief).collect()
}

fn row(at: u64, op: Op, offset: u64, len: u64, name: &str) -> (u64, Op, u64, u64, String) {
    (at, op, offset, len, name.to_owned())
}

#[test]
fn every_format_is_recognized_by_its_content() {
    for format in Format::ALL {
        let (events, _) = read(format);
        assert!(events.len() >= 2, "{format}");
    }
}

#[test]
fn stages_threads_and_flushes_of_blktrace_are_read() {
    for format in [Format::Blktrace, Format::Blkparse, Format::Forebay] {
        let rows = brief(format);
        let write = |at| row(at, Op::Write, 1 << 20, 4096, "8,16");
        let flush = |at| row(at, Op::Flush, 0, 0, "8,16");
        let want = [write(1000), write(2000), write(5000), flush(6000), flush(7000)];
        assert_eq!(rows, want, "{format}");
        let stages: Vec<Stage> = read(format).0.iter().map(|event| event.stage).collect();
        let (issued, completed) = (Stage::Issued, Stage::Completed);
        assert_eq!(stages, [Stage::Queued, issued, completed, issued, completed], "{format}");
    }
    let mut source = source(sample(Format::Blktrace), None).unwrap();
    let first = source.next().unwrap();
    assert_eq!(source.names().process_name(first.pid), Some("fio"));
}

#[test]
fn big_endian_and_wide_records_of_blktrace_are_read() {
    let narrow = sample(Format::Blktrace);
    let record = &narrow[52..100];
    let mut big = Vec::new();
    let widths = [4, 4, 8, 8, 4, 4, 4, 4, 4, 2, 2];
    let mut at = 0;
    for width in widths {
        big.extend(record[at..at + width].iter().rev());
        at += width;
    }
    let mut wide = record[..28].to_vec();
    wide[0] = 8;
    wide.extend(&record[32..36]);
    wide.extend(0x0012_0001u64.to_le_bytes());
    wide.extend(&record[36..48]);
    wide.extend([0; 12]);
    let (want, _) = drain(source(record.to_vec(), None).unwrap());
    assert_eq!(want.len(), 1);
    for other in [big, wide] {
        let (events, remarks) = drain(source(other, None).unwrap());
        assert!(remarks.is_clean(), "{remarks}");
        assert_eq!(events, want);
    }
}

#[test]
fn times_and_units_of_each_text_format_are_its_own() {
    let (read, write, discard, flush) = (Op::Read, Op::Write, Op::Discard, Op::Flush);
    let ticks = |ticks: u64| (ticks - 116_444_736_000_000_000) * 100;
    let rows = [
        row(ticks(128_166_372_003_061_629), read, 383_496_192, 32768, "hm_0"),
        row(ticks(128_166_372_016_382_155), write, 2_822_144, 4096, "hm_0"),
        row(ticks(128_166_372_026_382_245), write, 0, 4096, "hm_1"),
    ];
    assert_eq!(brief(Format::Msr), rows);
    let rows = [
        row(1_577_808_000_000_007_000, write, 8_792_731_648, 16384, "419"),
        row(1_577_808_000_000_039_000, read, 4096, 512, "725"),
    ];
    assert_eq!(brief(Format::Alibaba), rows);
    let rows = [
        row(1_538_323_200_000_000_000, read, 12_910_952 * 512, 65536, "1063"),
        row(1_538_323_201_000_000_000, write, 512, 4096, "1064"),
    ];
    assert_eq!(brief(Format::Tencent), rows);
    let rows = [row(0, write, 51200, 4096, "0"), row(1_500_000_001, read, 55296, 4096, "0")];
    assert_eq!(brief(Format::Blkreplay), rows);
    let rows = [
        row(938_513_000, write, 264_719_034 * 512, 8192, "4"),
        row(938_828_000, read, 197_570_570 * 512, 8192, "3"),
    ];
    assert_eq!(brief(Format::Disksim), rows);
    let rows = [
        row(0, write, 0, 4096, "/dev/sdb"),
        row(500_000, read, 8192, 512, "/dev/sdb"),
        row(500_000, flush, 0, 0, "/dev/sdb"),
    ];
    assert_eq!(brief(Format::Fio2), rows);
    let rows = [
        row(10_000, write, 0, 4096, "/dev/sdb"),
        row(20_000, read, 8192, 512, "/dev/sdb"),
        row(30_000, discard, 0, 65536, "/dev/sdb"),
        row(31_000, flush, 0, 0, "/dev/sdb"),
    ];
    assert_eq!(brief(Format::Fio3), rows);
}

#[test]
fn latencies_and_attributes_are_read_where_a_format_has_them() {
    let latencies = |format| -> Vec<Option<u64>> {
        read(format).0.iter().map(|event| event.latency.map(|nanos| nanos.0)).collect()
    };
    assert_eq!(latencies(Format::Msr), [Some(41_300), Some(300), Some(700)]);
    assert_eq!(latencies(Format::Systor), [Some(64_000), Some(60_000), None]);
    assert_eq!(latencies(Format::Biosnoop), [Some(740_000), Some(610_000), Some(1_240_000)]);
    let (events, _) = read(Format::OpenCas);
    assert!(events[0].flags.has(Flags::FUA) && events[2].flags.has(Flags::PREFLUSH));
    let (events, _) = read(Format::LogWrites);
    let ops: Vec<Op> = events.iter().map(|event| event.op).collect();
    assert_eq!(ops, [Op::Write, Op::Flush, Op::Discard]);
    assert!(events[0].flags.has(Flags::FUA));
    assert_eq!((events[0].offset_bytes, events[0].len_bytes), (32768, 1024));
    let mut source = source(sample(Format::Biosnoop), None).unwrap();
    let first = source.next().unwrap();
    assert_eq!(source.names().process_name(first.pid), Some("kworker/u4 a b"));
}

#[test]
fn unit_of_fio_and_disksim_times_is_an_option() {
    for (format, unit, want) in [
        (Format::Fio3, TimeUnit::Ms, 10_000_000),
        (Format::Fio3, TimeUnit::Ns, 10),
        (Format::Disksim, TimeUnit::Us, 938_513_000_000),
    ] {
        let options = ReadOptions { format: None, time_unit: Some(unit) };
        let bytes = Box::new(io::Cursor::new(sample(format)));
        let mut source = Source::open(bytes, options).unwrap();
        assert_eq!(source.next().unwrap().time, Nanos(want));
    }
    let own_ms = b"0.5 0 100 8 0\n1.25 0 108 8 1\n".to_vec();
    let (events, _) = drain(source(own_ms, Some(Format::Disksim)).unwrap());
    assert_eq!((events[0].time, events[1].time), (Nanos(500_000), Nanos(1_250_000)));
}

#[test]
fn packed_traces_are_unpacked_and_other_packers_named() {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(&sample(Format::Blkparse)).unwrap();
    let packed = packer.finish().unwrap();
    let (events, remarks) = drain(source(packed.clone(), None).unwrap());
    assert!(remarks.is_clean() && events.len() == 5);
    // Two packed files behind each other are one, as gzip has it.
    let twice = [packed.clone(), packed.clone()].concat();
    assert_eq!(drain(source(twice, None).unwrap()).0.len(), 10);
    let (events, remarks) = drain(source(packed[..packed.len() - 12].to_vec(), None).unwrap());
    assert!(matches!(remarks.rest, Some(Rest::Truncated { .. })), "{remarks}");
    assert!(events.len() <= 5);
    for (magic, name) in [
        (&b"\x28\xb5\x2f\xfd\0\0\0\0"[..], "zstd"),
        (b"BZh91AY", "bzip2"),
        (b"PK\x03\x04\0\0", "zip"),
    ] {
        let refused = source(magic.to_vec(), None).err().unwrap();
        assert!(
            matches!(refused, TraceError::Compression { program } if program == name),
            "{refused}"
        );
    }
}

#[test]
fn sources_that_are_no_trace_are_refused() {
    let refused = |bytes: &[u8]| source(bytes.to_vec(), None).err().unwrap();
    assert!(matches!(refused(b""), TraceError::Empty));
    assert!(matches!(refused(b"Dear reader,\nthis is a letter.\n"), TraceError::UnknownFormat));
    let mut archive = vec![b'a'; 512];
    archive[257..262].copy_from_slice(b"ustar");
    assert!(matches!(refused(&archive), TraceError::Archive));
    let other = source(sample(Format::Msr), Some(Format::Fio3)).err().unwrap();
    assert!(matches!(other, TraceError::NotThisFormat { format: Format::Fio3 }));
}

#[test]
fn lines_that_are_not_understood_are_counted_and_the_rest_is_read() {
    let text = b"419,W,4096,512,10\nsense,less\n1,2\n419,W,8192,x,20\n725,R,0,512,30\n".to_vec();
    let (events, remarks) = drain(source(text, Some(Format::Alibaba)).unwrap());
    assert_eq!(events.len(), 2);
    // Words are a heading; a line that begins with a digit should have been a row.
    assert_eq!((remarks.skipped.count, remarks.skipped.first), (2, 3));
    let long = [b"419,W,4096,512,10\n".to_vec(), vec![b'7'; 200_000], b"\n1,R,0,512,30\n".to_vec()];
    let (events, remarks) = drain(source(long.concat(), Some(Format::Alibaba)).unwrap());
    assert_eq!((events.len(), remarks.skipped.count, remarks.skipped.first), (2, 1, 2));
}

#[test]
fn rows_that_do_not_begin_with_a_digit_are_counted_and_headings_are_not() {
    let rows: [&[u8]; 6] = [
        b"device_id,opcode,offset,length,timestamp\n# made by hand\n",
        b"419,W,4096,512,10\n",
        b"-5,R,0,512,20\n",
        b"NaN,R,0,512,20\n",
        b"device_id,opcode,offset,length,timestamp\n",
        b"725,R,0,512,30\n",
    ];
    let (events, remarks) = drain(source(rows.concat(), Some(Format::Alibaba)).unwrap());
    assert_eq!((events.len(), remarks.skipped.count, remarks.skipped.first), (2, 2, 4));
}

#[test]
fn a_byte_order_mark_costs_no_request() {
    for format in [Format::Msr, Format::Alibaba, Format::Tencent, Format::Systor, Format::OpenCas] {
        let marked = [b"\xef\xbb\xbf".to_vec(), sample(format)].concat();
        let mut source = source(marked, None).unwrap();
        assert_eq!(source.format(), format);
        let events: Vec<Event> = source.by_ref().collect();
        assert_eq!(events, read(format).0, "{format}");
        assert!(source.into_remarks().1.is_clean(), "{format}");
    }
}

#[test]
fn damage_in_a_binary_trace_ends_it_where_it_lies() {
    let mut damaged = sample(Format::Blktrace);
    damaged[52 + 48 + 1] ^= 0xff;
    let (events, remarks) = drain(source(damaged, None).unwrap());
    assert_eq!(events.len(), 1);
    assert!(
        matches!(remarks.rest, Some(Rest::Corrupt { offset: 100, damage: Damage::Magic { .. } })),
        "{remarks}"
    );
    let own = sample(Format::Forebay);
    for at in 32..own.len() {
        let mut damaged = own.clone();
        damaged[at] ^= 0x10;
        let (events, remarks) = drain(source(damaged, None).unwrap());
        assert!(remarks.rest.is_some(), "byte {at}: a changed byte was not noticed");
        assert!(events.is_empty() || events.len() == 5, "byte {at}: a chunk is whole or not read");
    }
}

/// A source whose device fails after some bytes.
struct Failing(io::Cursor<Vec<u8>>);

impl Read for Failing {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.0.read(bytes)? {
            0 => Err(io::Error::other("the disk is gone")),
            read => Ok(read),
        }
    }
}

#[test]
fn a_failing_source_gives_what_was_read_before() {
    let bytes = Box::new(Failing(io::Cursor::new(sample(Format::Tencent))));
    let (events, remarks) = drain(Source::open(bytes, ReadOptions::default()).unwrap());
    assert_eq!(events.len(), 2);
    assert!(matches!(remarks.rest, Some(Rest::Io { .. })), "{remarks}");
    let refused =
        Source::open(Box::new(Failing(io::Cursor::new(Vec::new()))), ReadOptions::default());
    assert!(matches!(refused.err().unwrap(), TraceError::Io(_)));
}

#[test]
fn files_of_several_processors_are_merged_by_time() {
    let whole = sample(Format::Blktrace);
    let (first, second) = (whole[..100].to_vec(), whole[100..].to_vec());
    let bytes = |bytes| -> Box<dyn Read> { Box::new(io::Cursor::new(bytes)) };
    let parts = vec![bytes(second), bytes(first)];
    let merged = Source::merged(parts, ReadOptions::default()).unwrap();
    let (events, remarks) = drain(merged);
    assert!(remarks.is_clean());
    assert_eq!(events, drain(source(whole, None).unwrap()).0);
}

#[test]
fn conversion_keeps_what_the_other_format_can_say() {
    for format in Format::ALL {
        let (want, _) = drain(source(sample(format), None).unwrap());
        let own = compact(source(sample(format), None).unwrap());
        let again = source(own, None).unwrap();
        assert_eq!(again.has_times(), format != Format::LogWrites, "{format}");
        assert_eq!(drain(again).0, want, "{format}");
        let table = convert(source(sample(format), None).unwrap(), Target::Csv);
        let (rows, remarks) = drain(source(table, Some(Format::OpenCas)).unwrap());
        assert!(remarks.is_clean(), "{format}");
        let stage = |e: &&Event| {
            matches!(e.stage, Stage::Request | Stage::Issued) || format == Format::Biosnoop
        };
        let place = |e: &Event| (e.time, e.op, e.offset_bytes, e.len_bytes, e.flags);
        let want: Vec<_> = want.iter().filter(stage).map(place).collect();
        assert_eq!(rows.iter().map(place).collect::<Vec<_>>(), want, "{format}");
    }
    let log = convert(source(sample(Format::Fio3), None).unwrap(), Target::Fio);
    assert!(
        log.starts_with(b"fio version 3 iolog\n0 /dev/sdb add\n0 /dev/sdb open\n0 /dev/sdb write")
    );
    let (events, _) = drain(source(log, None).unwrap());
    assert_eq!(events.len(), 4);
    let ascii = convert(source(sample(Format::Fio3), None).unwrap(), Target::Disksim);
    assert_eq!(ascii, b"0 0 0 8 0\n10000 0 16 1 1\n");
}

fn any_event() -> impl Strategy<Value = Event> {
    let op = prop::sample::select(Op::ALL.to_vec());
    let stage = prop::sample::select(Stage::ALL.to_vec());
    let place = (any::<u32>(), 0u32..2, any::<u16>(), prop::bool::ANY);
    let rest = (any::<u64>(), any::<Option<u64>>(), 0u32..4, any::<u32>(), 0u8..32);
    (op, stage, place, rest).prop_map(|(op, stage, place, rest)| {
        let (sector, odd, count, is_far) = place;
        let (time, latency, _, pid, flags) = rest;
        let len_bytes = u64::from(count) * if odd == 1 { 1 } else { 512 };
        let offset = u64::from(sector) * if is_far { 1 << 20 } else { 512 } + u64::from(odd);
        Event {
            time: Nanos(time),
            latency: latency.map(Nanos),
            offset_bytes: if len_bytes == 0 { 0 } else { offset },
            len_bytes,
            device: Default::default(),
            pid,
            op,
            stage,
            flags: Flags(flags),
        }
    })
}

proptest! {
    #[test]
    fn own_format_gives_back_what_was_written(
        events in prop::collection::vec(any_event(), 0..200),
    ) {
        let mut source = source(sample(Format::Tencent), None).unwrap();
        source.by_ref().for_each(drop);
        let mut out = Vec::new();
        let mut writer = forebay_trace::CompactWriter::new(&mut out, true);
        for event in &events {
            writer.event(event, source.names()).unwrap();
        }
        writer.finish(source.names()).unwrap();
        let (again, remarks) = drain(common::source(out, None).unwrap());
        prop_assert!(remarks.is_clean(), "{}", remarks);
        prop_assert_eq!(again, events);
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        for format in Format::ALL.map(Some).into_iter().chain([None]) {
            if let Ok(source) = source(bytes.clone(), format) {
                drain(source);
            }
        }
    }

    #[test]
    fn no_change_of_a_trace_makes_its_reader_panic(
        format in prop::sample::select(Format::ALL.to_vec()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        repeats in 1usize..4,
    ) {
        let mut bytes = sample(format).repeat(repeats);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        for wanted in [Some(format), None] {
            if let Ok(source) = source(bytes.clone(), wanted) {
                let (events, _) = drain(source);
                let has_end = |e: &Event| e.offset_bytes.checked_add(e.len_bytes).is_some();
                prop_assert!(events.iter().all(has_end));
            }
        }
    }

    #[test]
    fn a_trace_that_is_cut_off_gives_a_prefix(
        format in prop::sample::select(Format::ALL.to_vec()),
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = sample(format);
        let (want, _) = drain(source(whole.clone(), None).unwrap());
        let part = whole[..cut.index(whole.len())].to_vec();
        let Ok(cut) = source(part, Some(format)) else { return Ok(()) };
        let (got, remarks) = drain(cut);
        let is_text = !matches!(
            format,
            Format::Forebay | Format::Blktrace | Format::LogWrites | Format::Vscsi
        );
        prop_assert!(got.len() <= want.len());
        // The last line of a text may end in a number that was longer.
        let sure = if is_text { got.len().saturating_sub(1) } else { got.len() };
        prop_assert_eq!(&got[..sure], &want[..sure]);
        let has_end = matches!(format, Format::Forebay | Format::LogWrites);
        if has_end && got.len() < want.len() {
            prop_assert!(remarks.rest.is_some(), "an end without its mark is noticed");
        }
    }
}
