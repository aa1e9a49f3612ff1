use super::SummaryBuilder;
use crate::event::{DeviceIndex, Event, Flags, Op, Stage};
use forebay_units::Nanos;

fn event(at_us: u64, stage: Stage, op: Op, sector: u64, sectors: u64) -> Event {
    Event {
        time: Nanos::from_micros(at_us),
        latency: None,
        offset_bytes: sector * 512,
        len_bytes: sectors * 512,
        device: DeviceIndex(0),
        pid: 0,
        op,
        stage,
        flags: Flags::default(),
    }
}

#[test]
fn latency_and_depth_come_from_issue_and_completion() {
    let (issued, completed) = (Stage::Issued, Stage::Completed);
    let events = [
        event(0, issued, Op::Write, 0, 8),
        event(10, issued, Op::Write, 8, 8),
        event(30, completed, Op::Write, 8, 8),
        event(100, completed, Op::Write, 0, 8),
        event(200, issued, Op::Flush, 0, 0),
        event(250, completed, Op::Flush, 0, 0),
    ];
    let mut builder = SummaryBuilder::new(issued);
    events.iter().for_each(|event| builder.event(event));
    let got = builder.finish();
    assert_eq!((got.records, got.write.count, got.flush.count), (3, 2, 1));
    let write = got.write.latency_ns.unwrap();
    assert_eq!((write.count, write.mean), (2, 60_000.0), "20 us and 100 us");
    assert_eq!(got.flush.latency_ns.unwrap().mean, 50_000.0);
    let depth = got.queue_depth.unwrap();
    assert_eq!((depth.min, depth.max, depth.count), (1, 2, 3));
}

#[test]
fn depth_comes_from_latencies_where_a_record_has_both_ends() {
    let mut builder = SummaryBuilder::new(Stage::Request);
    for (at, latency) in [(0, 100), (50, 10), (70, 5), (200, 1)] {
        let mut event = event(at, Stage::Request, Op::Read, 0, 8);
        event.latency = Some(Nanos::from_micros(latency));
        builder.event(&event);
    }
    let got = builder.finish();
    let depth = got.queue_depth.unwrap();
    assert_eq!((depth.count, depth.mean, depth.max), (4, 1.5, 2));
    assert_eq!(got.immediate_repeats, 3);
}

#[test]
fn flushes_are_measured_from_one_to_the_next() {
    let request = Stage::Request;
    let events = [
        event(0, request, Op::Write, 0, 8),
        event(10, request, Op::Flush, 0, 0),
        event(20, request, Op::Write, 8, 8),
        event(21, request, Op::Write, 16, 8),
        event(40, request, Op::Flush, 0, 0),
    ];
    let mut builder = SummaryBuilder::new(request);
    events.iter().for_each(|event| builder.event(event));
    let got = builder.finish();
    assert_eq!(got.flush_gap_ns.unwrap().mean, 30_000.0);
    assert_eq!(got.writes_per_flush.unwrap().mean, 2.0);
    assert_eq!((got.sequential, got.pairs, got.zero_length), (2, 2, 2));
}

#[test]
fn alignment_is_told_by_the_place_within_four_kib() {
    let events = [(63, 8), (71, 8), (64, 8), (64, 1)];
    let mut builder = SummaryBuilder::new(Stage::Request);
    for (sector, sectors) in events {
        builder.event(&event(0, Stage::Request, Op::Write, sector, sectors));
    }
    let got = builder.finish();
    assert_eq!(got.unaligned_4k, 3);
    assert_eq!(got.start_sector_mod_8, [2, 0, 0, 0, 0, 0, 0, 2]);
}

#[test]
fn a_trace_without_events_has_a_summary_of_zeros() {
    let got = SummaryBuilder::new(Stage::Request).finish();
    assert_eq!((got.records, got.span_ns, got.interarrival_ns), (0, 0, None));
}
