use super::{MAX_SLOTS, Slot, Timeline};
use crate::event::{DeviceIndex, Event, Flags, Op, Stage};
use crate::{Pattern, PatternOptions, Rules};
use forebay_units::Nanos;

fn event(at_ms: u64, op: Op, sector: u64, sectors: u64) -> Event {
    Event {
        time: Nanos::from_millis(at_ms),
        latency: None,
        offset_bytes: sector * 512,
        len_bytes: sectors * 512,
        device: DeviceIndex(0),
        pid: 0,
        op,
        stage: Stage::Request,
        flags: Flags::default(),
    }
}

fn timeline(events: &[Event]) -> Timeline {
    let mut timeline = Timeline::new(Stage::Issued);
    events.iter().for_each(|event| timeline.event(event));
    timeline
}

#[test]
fn sums_of_all_spans_are_those_of_iopattern_at_any_length() {
    // Every third request follows the one before; a gap of a day in the middle.
    for gap_ms in [0, 1, 1000, 86_400_000] {
        let at = |n: u64| n * 7 + if n > 500 { gap_ms } else { 0 };
        let sector = |n: u64| if n % 3 == 1 { (n - 1) * 1000 + 8 } else { n * 1000 };
        let op = |n: u64| if n % 5 == 0 { Op::Read } else { Op::Write };
        let events: Vec<Event> = (0..1000).map(|n| event(at(n), op(n), sector(n), 8)).collect();
        let options = PatternOptions {
            rules: Rules::Dtrace,
            interval: None,
            stage: Stage::Issued,
            only: None,
            counts_empty: false,
        };
        let (mut pattern, mut rows) = (Pattern::new(options), Vec::new());
        events.iter().for_each(|event| pattern.event(event, &mut rows));
        pattern.finish(&mut rows);
        let timeline = timeline(&events);
        let mut sum = Slot::default();
        timeline.slots().iter().for_each(|slot| sum.merge(*slot));
        assert_eq!((sum.random, sum.count), (rows[0].random, rows[0].count), "gap {gap_ms}");
        assert_eq!(sum.read_bytes, rows[0].read_bytes);
        assert_eq!(sum.written_bytes, rows[0].written_bytes);
        assert!(timeline.slots().len() <= MAX_SLOTS);
        let last = at(999) * 1_000_000 / timeline.width().0;
        assert_eq!(timeline.slots().len() as u64, last + 1, "the last request is in the last span");
    }
}

#[test]
fn flushes_and_older_records_do_not_move_the_spans() {
    let flush = Event { len_bytes: 0, op: Op::Flush, ..event(5, Op::Flush, 0, 0) };
    let events = [event(10, Op::Write, 0, 8), flush, event(3, Op::Write, 8, 8)];
    let timeline = timeline(&events);
    let slot = Slot { random: 0, count: 2, read_bytes: 0, written_bytes: 8192 };
    assert_eq!(timeline.slots(), [slot]);
}
