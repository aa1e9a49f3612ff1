use std::cell::RefCell;
use std::rc::Rc;

use forebay_device::{BlockDevice, MemoryDevice};
use forebay_rt::Runtime;
use forebay_trace::{DeviceIndex, Event, Flags, Op, Stage};
use forebay_units::Nanos;

use super::{LeftOut, Plan, Replayed, replay};
use crate::args::Speed;

fn event(at_ms: u64, op: Op, block: u64, flags: Flags) -> Event {
    Event {
        time: Nanos::from_millis(at_ms),
        latency: None,
        offset_bytes: block * 4096,
        len_bytes: if op == Op::Flush { 0 } else { 4096 },
        device: DeviceIndex(3),
        pid: 0,
        op,
        stage: Stage::Request,
        flags,
    }
}

fn run(events: Vec<Event>, speed: Speed, reads_only: bool, wraps: bool) -> (Replayed, Vec<u8>) {
    let stage = Stage::Request;
    let plan = Plan { speed, queue_depth: 4, reads_only, wraps, stage };
    Runtime::simulated(1).block_on(async move {
        let device = Rc::new(MemoryDevice::new("m", 64 << 10));
        let events = RefCell::new(events.into_iter());
        let next = |_| events.borrow_mut().next();
        let replayed = replay(device.clone(), plan, next, || false).await.unwrap();
        let content = device.read(0, forebay_device::IoBuf::zeroed(64 << 10)).await.unwrap();
        (replayed, content.to_vec())
    })
}

#[test]
fn own_pace_keeps_the_times_of_the_trace() {
    let none = Flags::default();
    let events = vec![
        event(5_000, Op::Write, 0, none),
        event(5_010, Op::Read, 1, none),
        event(5_030, Op::Flush, 0, none),
    ];
    let (once, _) = run(events.clone(), Speed::Times(1.0), false, false);
    assert_eq!(once.span, Nanos::from_millis(30), "from the first request, not from time 0");
    assert_eq!(once.summary.interarrival_ns.unwrap().mean, 15e6);
    assert_eq!(once.max_delay, Nanos::ZERO);
    let (twice, _) = run(events.clone(), Speed::Times(2.0), false, false);
    assert_eq!(twice.span, Nanos::from_millis(15));
    let (fast, _) = run(events, Speed::Max, false, false);
    assert_eq!(fast.span, Nanos::ZERO, "memory takes no time");
    assert_eq!((fast.summary.write.count, fast.summary.flush.count), (1, 1));
}

#[test]
fn only_what_was_written_in_the_trace_is_written() {
    let none = Flags::default();
    let events = vec![
        event(0, Op::Write, 1, Flags::FUA),
        event(0, Op::Read, 2, none),
        event(0, Op::Write, 9, Flags::PREFLUSH),
    ];
    let (replayed, content) = run(events.clone(), Speed::Max, false, false);
    let is_written = |block: usize| content[block * 4096..][..4096].iter().any(|b| *b != 0);
    let written: Vec<usize> = (0..16).filter(|block| is_written(*block)).collect();
    assert_eq!(written, [1, 9]);
    assert_eq!(replayed.summary.write.latency_ns.unwrap().count, 2);
    assert_eq!(replayed.left_out, LeftOut::default());
    let (reads, content) = run(events, Speed::Max, true, false);
    assert!(content.iter().all(|byte| *byte == 0), "reads change nothing");
    assert_eq!((reads.summary.read.count, reads.left_out.other), (1, 2));
}

#[test]
fn requests_that_do_not_fit_are_left_out_or_folded_back() {
    let none = Flags::default();
    let mut odd = event(0, Op::Read, 0, none);
    odd.len_bytes = 100;
    let mut empty = event(0, Op::Write, 0, none);
    empty.len_bytes = 0;
    let events = vec![event(0, Op::Write, 16, none), event(0, Op::Write, 15, none), odd, empty];
    let (replayed, _) = run(events.clone(), Speed::Max, false, false);
    assert_eq!(replayed.left_out, LeftOut { beyond_end: 1, unaligned: 1, other: 1 });
    assert_eq!(replayed.summary.write.count, 1);
    let (folded, content) = run(events, Speed::Max, false, true);
    assert_eq!(folded.left_out.beyond_end, 0);
    assert_eq!(folded.summary.write.count, 2);
    assert!(content[..4096].iter().any(|byte| *byte != 0), "block 16 of 16 came to the front");
}

#[test]
fn stages_other_than_the_chosen_one_are_passed_over() {
    let mut queued = event(0, Op::Write, 0, Flags::default());
    queued.stage = Stage::Queued;
    let (replayed, _) = run(vec![queued], Speed::Max, false, false);
    assert_eq!(replayed.summary.records, 0);
}
