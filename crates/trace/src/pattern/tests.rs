use super::{Pattern, PatternOptions, PatternRow, Rules};
use crate::event::{DeviceIndex, Event, Flags, Op, Stage};
use forebay_units::Nanos;

fn event(at_ms: u64, device: u32, op: Op, sector: u64, sectors: u64) -> Event {
    Event {
        time: Nanos::from_millis(at_ms),
        latency: None,
        offset_bytes: sector * 512,
        len_bytes: sectors * 512,
        device: DeviceIndex(device),
        pid: 0,
        op,
        stage: Stage::Completed,
        flags: Flags::default(),
    }
}

fn rows(rules: Rules, secs: Option<u64>, counts_empty: bool, events: &[Event]) -> Vec<PatternRow> {
    let (interval, only) = (secs.map(Nanos::from_secs), None);
    let stage = Stage::Completed;
    let mut pattern = Pattern::new(PatternOptions { rules, interval, stage, only, counts_empty });
    let mut rows = Vec::new();
    events.iter().for_each(|event| pattern.event(event, &mut rows));
    pattern.finish(&mut rows);
    rows
}

#[test]
fn first_request_is_random_for_iopattern_unless_it_begins_at_zero() {
    for (sector, random) in [(0, 0), (8, 1)] {
        let rows = rows(Rules::Dtrace, None, false, &[event(0, 0, Op::Read, sector, 8)]);
        assert_eq!((rows[0].random, rows[0].count), (random, 1));
    }
}

#[test]
fn iopattern_row_has_the_figures_of_its_requests() {
    // Reads 100..108 and 108..116, a write at 0 of one sector: random, sequential, random.
    let events = [
        event(0, 0, Op::Read, 100, 8),
        event(1, 0, Op::Read, 108, 8),
        event(2, 0, Op::Write, 0, 1),
    ];
    let row = rows(Rules::Dtrace, None, false, &events)[0];
    assert_eq!((row.random, row.count), (2, 3));
    assert_eq!((row.random_pct(Rules::Dtrace), row.sequential_pct(Rules::Dtrace)), (66, 34));
    assert_eq!((row.min_bytes, row.max_bytes, row.avg_bytes()), (512, 4096, 2901));
    assert_eq!((row.read_bytes / 1024, row.written_bytes / 1024), (8, 0));
}

#[test]
fn positions_of_iopattern_are_per_device_and_outlive_intervals() {
    let events = [
        event(0, 0, Op::Write, 0, 8),
        event(1, 1, Op::Write, 0, 16),
        event(2, 0, Op::Write, 8, 8),
        event(2500, 1, Op::Write, 16, 8),
    ];
    let rows = rows(Rules::Dtrace, Some(1), false, &events);
    let random: Vec<_> = rows.iter().map(|row| (row.random, row.count)).collect();
    assert_eq!(random, [(0, 3), (0, 0), (0, 1)], "an idle second is a row of zeros");
    assert_eq!(rows[1].sequential_pct(Rules::Dtrace), 0);
    assert_eq!(rows[2].start, Nanos::from_secs(2));
}

#[test]
fn biopattern_forgets_positions_at_each_interval_and_has_a_row_a_device() {
    let events = [
        event(0, 0, Op::Write, 64, 8),
        event(1, 1, Op::Write, 64, 8),
        event(2, 0, Op::Write, 72, 8),
        event(3, 1, Op::Write, 0, 8),
        event(1500, 0, Op::Write, 80, 8),
        event(1501, 0, Op::Write, 88, 8),
    ];
    let rows = rows(Rules::Bcc, Some(1), false, &events);
    let brief: Vec<_> =
        rows.iter().map(|row| (row.device.unwrap().0, row.random, row.count)).collect();
    assert_eq!(brief, [(0, 0, 1), (1, 1, 1), (0, 0, 1)]);
    assert_eq!(rows[0].written_bytes, 4096, "the first request's bytes are left out");
}

#[test]
fn shares_are_cut_off_by_iopattern_and_rounded_to_even_by_biopattern() {
    let pct = |random, count, rules| {
        PatternRow { random, count, ..PatternRow::default() }.random_pct(rules)
    };
    for (random, count, cut, rounded) in [
        (1, 8, 12, 12),
        (3, 8, 37, 38),
        (1, 3, 33, 33),
        (2, 3, 66, 67),
        (0, 0, 0, 0),
        (5, 5, 100, 100),
    ] {
        assert_eq!(pct(random, count, Rules::Dtrace), cut, "{random}/{count}");
        assert_eq!(pct(random, count, Rules::Bcc), rounded, "{random}/{count}");
    }
}

#[test]
fn flushes_are_counted_apart_unless_they_are_to_count() {
    let events = [
        event(0, 0, Op::Write, 64, 8),
        event(1, 0, Op::Flush, 0, 0),
        event(2, 0, Op::Write, 72, 8),
    ];
    let apart = rows(Rules::Dtrace, None, false, &events)[0];
    assert_eq!((apart.random, apart.count, apart.empty), (1, 2, 1));
    let counted = rows(Rules::Dtrace, None, true, &events)[0];
    assert_eq!((counted.random, counted.count, counted.empty), (3, 3, 1));
    // biopattern's own way: the flush sets the position to 0, which stands for none.
    let counted = rows(Rules::Bcc, None, true, &events)[0];
    assert_eq!((counted.random, counted.count), (1, 1));
}

#[test]
fn discards_have_a_position_and_move_no_bytes() {
    let events = [event(0, 0, Op::Write, 0, 8), event(1, 0, Op::Discard, 8, 1 << 20)];
    let row = rows(Rules::Dtrace, None, false, &events)[0];
    assert_eq!((row.random, row.count, row.discards), (0, 2, 1));
    assert_eq!((row.max_bytes, row.written_bytes), (4096, 4096));
}

#[test]
fn a_leap_of_the_clock_makes_no_endless_table() {
    let events = [event(0, 0, Op::Write, 0, 8), event(u64::MAX / 2_000_000, 0, Op::Write, 8, 8)];
    let rows = rows(Rules::Dtrace, Some(1), false, &events);
    assert_eq!(rows.len() as u64, super::MAX_EMPTY_ROWS + 1);
    assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), 2);
}
