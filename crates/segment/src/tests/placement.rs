//! Where blocks go and which segments are cleaned: streams, victims, and what the table tells.

use forebay_format::journal::SegmentUse;

use super::*;
use crate::MAP_STREAM;

const LONG: u8 = 0;
const SHORT: u8 = 1;

// Of 1000 live blocks half are young, so even overwrites would hit 500.
#[test]
fn skew_begins_at_one_and_a_half_and_ends_below_one_and_a_quarter() {
    assert!(!Classes::new(true).judge_skew(8000, 5999, 2000, 0.5));
    let classes = Classes::new(true);
    assert!(classes.judge_skew(8000, 6000, 2000, 0.5));
    // An eighth of the 8000 and 6000 is forgotten: 7000 + 8000 blocks, 5250 + 4125 of them young.
    assert!(classes.judge_skew(8000, 4125, 2000, 0.5), "9375 of 15000 are 1.25 times the half");
    assert!(!classes.judge_skew(8000, 4100, 2000, 0.5));
    assert!(!classes.is_skewed());
}

#[test]
fn a_verdict_takes_500_recent_blocks() {
    assert!(!Classes::new(true).judge_skew(499, 499, 2000, 0.5));
    assert!(Classes::new(true).judge_skew(500, 500, 2000, 0.5));
    let classes = Classes::new(true);
    assert!(!classes.judge_skew(300, 300, 2000, 0.5));
    assert!(classes.judge_skew(300, 300, 2000, 0.5), "262.5 of the first 300 still count");
}

#[test]
fn the_short_lifespan_is_the_average_of_the_last_sixteen_short_lived_segments() {
    let classes = Classes::new(true);
    assert!(classes.judge_skew(1000, 1000, 1000, 0.5));
    let now = 100_000;
    let user = |age: u64| classes.user_stream(now, Some(now - age));
    let is_short = |age: u64| user(age - 1) == SHORT && user(age) == LONG;
    let reclaimed = |stream, lifespan| classes.reclaimed(now, stream, now - lifespan);
    // Segments that the cleaner filled do not count.
    (0..16).for_each(|_| reclaimed(3, 10));
    reclaimed(LONG, 850);
    (1..15).for_each(|_| reclaimed(LONG, 50));
    assert_eq!(user(90_000), SHORT, "fifteen segments are too few");
    reclaimed(LONG, 50);
    assert!(is_short(100), "850 + 15 * 50 are 16 * 100");
    // From now on only segments of short-lived blocks count.
    reclaimed(LONG, 9000);
    assert!(is_short(100));
    reclaimed(SHORT, 50);
    assert!(is_short(50), "the first one has left the average");
    reclaimed(SHORT, 66);
    assert!(is_short(51), "15 * 50 + 66 are 16 * 51");
}

#[test]
fn moved_blocks_are_young_middle_or_old_by_four_and_sixteen_short_lifespans() {
    let classes = Classes::new(true);
    assert!(classes.judge_skew(1000, 1000, 1000, 0.5));
    (0..16).for_each(|_| classes.reclaimed(50, LONG, 0));
    let moved = |age: u64| classes.moved_stream(5000, LONG, 5000 - age);
    assert_eq!([0, 199, 200, 799, 800].map(moved), [3, 3, 4, 4, 5]);
    assert_eq!(
        [LONG, SHORT, 2, 5, MAP_STREAM].map(Classes::is_user),
        [true, true, false, false, false]
    );
}

/// A table with full segments of 1000 blocks, each opened at a clock and with live blocks.
fn filled(segments: &[(u64, u32)]) -> Rc<SegmentTable> {
    let table = SegmentTable::new();
    table.add_group(segments.len() as u32, 1000);
    for (clock, live) in segments {
        let segment = table.allocate(SegmentKind::Data, 0, CommitId(1), *clock, 0).unwrap();
        table.close(segment, true);
        table.add_live(BlockAddr::new(segment, 0), *live);
    }
    table
}

#[test]
fn the_worthiest_segments_come_in_the_order_of_cost_by_benefit() {
    let order = |segments: &[(u64, u32)]| -> Vec<u32> {
        let choice = Choice::Worthiest { now: 1000 };
        let victims = Victims::of(&filled(segments), CommitId(1), choice);
        victims.map(|victim| victim.segment.0).collect()
    };
    // Ages of 0, 7 and 26 count as 1, 2 and 3.
    let segments = [
        (1000, 200), // 1.2 / 0.8 = 1.5
        (974, 500),  // 1.5 / (0.5 * 3) = 1
        (974, 600),  // 1.6 / (0.4 * 3) = 1.33
        (1000, 400), // 1.4 / 0.6 = 2.33
        (1000, 100), // 1.1 / 0.9 = 1.22
        (993, 600),  // 1.6 / (0.4 * 2) = 2
    ];
    assert_eq!(order(&segments), [1, 4, 2, 0, 5, 3]);
    // A quarter of the 500 blocks that the emptiest frees is enough, however old the other is.
    assert_eq!(order(&[(1000, 500), (0, 875), (0, 876)]), [1, 0]);
}

#[test]
fn the_age_of_live_blocks_is_an_average_and_young_ones_are_below_the_limit() {
    let table = filled(&[(995, 1)]);
    assert_eq!(table.live_ages(1000, 5), (5, 0.0), "an age of 5 is not below 5");
    assert_eq!(table.live_ages(1000, 6), (5, 1.0));
    assert_eq!(filled(&[(995, 1), (990, 3)]).live_ages(1000, 6), (8, 0.25), "35 / 4");
    assert_eq!(SegmentTable::new().live_ages(1000, 6), (0, 0.0));
}

#[test]
fn a_segment_holds_what_its_group_promises_or_what_its_footer_says() {
    let table = SegmentTable::new();
    table.add_group(2, 20);
    table.add_group(2, 100);
    let all = [0, 1, 2, 3, 4].map(|segment| table.data_blocks(SegmentId(segment)));
    assert_eq!(all, [20, 20, 100, 100, 0]);
    assert_eq!(table.capacity(SegmentId(1)), 20);
    table.holds(SegmentId(1), 23);
    assert_eq!((table.capacity(SegmentId(1)), table.capacity(SegmentId(0))), (23, 20));
}

// The journal has a record of every change, and none twice.
#[test]
fn records_tell_each_change_once_and_with_all_every_segment_in_use() {
    let table = SegmentTable::new();
    table.add_group(4, 100);
    let taken = |all| -> Vec<(u32, SegmentUse, bool)> {
        let records = table.take_records(all);
        records.iter().map(|record| (record.segment.0, record.kind, record.footer)).collect()
    };
    assert!(taken(false).is_empty() && taken(true).is_empty(), "nothing is in use");
    let [data, map] = [SegmentKind::Data, SegmentKind::Map]
        .map(|kind| table.allocate(kind, 0, CommitId(1), 1, 0).unwrap());
    let both = [(0, SegmentUse::Data, false), (1, SegmentUse::Map, false)];
    assert_eq!(taken(false), both);
    assert!(taken(false).is_empty(), "nothing has changed since");
    assert_eq!((taken(true), taken(true)), (both.to_vec(), both.to_vec()));
    table.close(data, true);
    assert_eq!(taken(false), [(0, SegmentUse::Data, true)]);
    assert!(!table.is_free(data) && table.is_free(SegmentId(2)));
    table.collect_empty(CommitId(2));
    assert_eq!(taken(false), [(0, SegmentUse::Free, true)]);
    table.free(data);
    assert_eq!(
        taken(false),
        [(0, SegmentUse::Free, false)],
        "its next use begins without a footer"
    );
    table.retire_map(map, CommitId(2));
    assert_eq!(taken(false), [(1, SegmentUse::Free, false)]);
    table.free(map);
    table.reopen(SegmentId(3));
    let last = [(1, SegmentUse::Free, false), (3, SegmentUse::Map, false)];
    assert_eq!((taken(false), taken(true)), (last.to_vec(), last[1..].to_vec()));
}

#[test]
fn a_page_that_was_used_once_stays_for_one_more_turn() {
    let place = |segment| FooterPlace { pool: POOL, segment: SegmentId(segment), birth: 1 };
    let keep = |pages: &Pages, segment: u32| {
        pages.keep(&place(segment), 0, IoBuf::copy_of(&[segment as u8; BLOCK_LEN]).freeze());
    };
    let pages = Pages::new(2 * BLOCK_LEN as u64);
    keep(&pages, 0);
    keep(&pages, 1);
    assert!(pages.get(&place(0), 0).is_some());
    keep(&pages, 2);
    keep(&pages, 3);
    // The second gave way to the third, the first to the fourth.
    let kept = [2, 3, 0, 1].map(|segment| pages.get(&place(segment), 0).is_some());
    assert_eq!(kept, [true, true, false, false]);
    // However small the budget is, one page is kept.
    let least = Pages::new(0);
    (0..3).for_each(|segment| keep(&least, segment));
    assert_eq!(least.bytes(), BLOCK_LEN as u64);
    assert!(least.get(&place(2), 0).is_some());
}
