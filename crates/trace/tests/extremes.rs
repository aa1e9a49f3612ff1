//! Analyses of extreme events: times, places and sizes up to the ends of their types.

use forebay_trace::{
    CacheStudy, Converter, DeviceIndex, Event, Flags, Names, Op, Pattern, PatternOptions, Policy,
    Rules, SeekKey, SeekOptions, Seeks, Stage, SummaryBuilder, Target, Timeline,
};
use forebay_units::Nanos;
use proptest::prelude::*;

/// Numbers at which arithmetic goes wrong.
fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(512),
        Just(4096),
        Just(u64::from(u32::MAX)),
        Just(1 << 41),
        Just((1 << 63) - 1),
        Just(1 << 63),
        Just(u64::MAX - 511),
        Just(u64::MAX),
        any::<u64>(),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let numbers = (extreme(), proptest::option::of(extreme()), extreme(), extreme());
    let kinds = (0..5usize, 0..4usize, 0..32u8, 0..3u32, prop_oneof![Just(0), Just(u32::MAX)]);
    (numbers, kinds).prop_map(|((time, latency, offset, len), (op, stage, flags, device, pid))| {
        let op = Op::ALL[op];
        Event {
            time: Nanos(time),
            latency: latency.map(Nanos),
            offset_bytes: if op == Op::Flush { 0 } else { offset },
            len_bytes: if op == Op::Flush { 0 } else { len.min(u64::MAX - offset) },
            device: DeviceIndex(device),
            pid,
            op,
            stage: Stage::ALL[stage],
            flags: Flags(flags),
        }
    })
}

fn counts(event: &Event, stage: Stage) -> bool {
    event.stage == stage || event.stage == Stage::Request
}

fn pattern_counts(events: &[Event], rules: Rules, interval: Option<Nanos>) -> u64 {
    let stage = Stage::Issued;
    let options = PatternOptions { rules, interval, stage, only: None, counts_empty: true };
    let (mut pattern, mut rows) = (Pattern::new(options), Vec::new());
    events.iter().for_each(|event| pattern.event(event, &mut rows));
    pattern.finish(&mut rows);
    for row in &rows {
        let shares = row.random_pct(rules) + row.sequential_pct(rules);
        assert_eq!(shares, if row.count == 0 { 0 } else { 100 });
        assert!(row.transfers == 0 || row.avg_bytes() <= row.max_bytes, "{row:?}");
    }
    rows.iter().map(|row| row.count).sum()
}

fn check(events: &[Event]) {
    let stage = Stage::Issued;
    let at_stage = events.iter().filter(|event| counts(event, stage)).count() as u64;
    // A fifth of all time an interval: rows of gaps stay few.
    let interval = Some(Nanos(u64::MAX / 5));
    for interval in [None, interval] {
        assert_eq!(pattern_counts(events, Rules::Dtrace, interval), at_stage);
        assert!(pattern_counts(events, Rules::Bcc, interval) <= at_stage);
    }
    for key in [SeekKey::ThreadAndDevice, SeekKey::Device] {
        for is_signed in [false, true] {
            let options = SeekOptions { key, is_signed, stage, only: None, counts_empty: true };
            let mut seeks = Seeks::new(options);
            events.iter().for_each(|event| seeks.event(event));
            let total: u64 = seeks.total().iter().map(|bucket| bucket.count).sum();
            let by_group = seeks.groups().into_iter().flat_map(|group| group.buckets);
            assert_eq!(by_group.map(|bucket| bucket.count).sum::<u64>(), total);
            assert!(total <= at_stage);
        }
    }
    let (mut summary, mut timeline) = (SummaryBuilder::new(stage), Timeline::new(stage));
    for event in events {
        summary.event(event);
        timeline.event(event);
    }
    assert_eq!(summary.finish().records, at_stage);
    let placed = events.iter().filter(|event| counts(event, stage) && event.has_position());
    let slots: u64 = timeline.slots().iter().map(|slot| slot.count).sum();
    assert_eq!(slots, placed.count() as u64);
    // Blocks so large that no request is left out for the number of its blocks.
    let mut study = CacheStudy::new(1 << 50, stage, false);
    events.iter().for_each(|event| study.number_blocks(event));
    study.add_cache(Policy::Lru, 1);
    events.iter().for_each(|event| study.access(event));
    assert!(study.misses()[0].misses <= study.accesses());
    let mut names = Names::default();
    for name in ["a", "b", "c"] {
        names.add_device(name);
    }
    for target in Target::ALL {
        let mut converter = Converter::new(target, Vec::new(), stage, true).unwrap();
        for event in events {
            converter.event(event, &names).unwrap();
        }
        converter.finish(&names).unwrap();
    }
}

proptest! {
    #[test]
    fn every_analysis_takes_extreme_events(events in prop::collection::vec(event(), 0..12)) {
        check(&events);
    }
}
