use forebay_units::Nanos;

use super::{GroupController, Setting, Sum, Trial, Verdict, Waiting};
use crate::config::GroupCommit;

/// Clients that keep 32 records under way, frames that take a millisecond.
fn controller(max_frames: usize) -> GroupController {
    let mut controller = GroupController::new(GroupCommit::Adaptive, max_frames);
    controller.concurrency = 32 * 16;
    controller.frame_time = Nanos::from_micros(1000);
    controller
}

/// Records that end a window with up to 48 under way.
const WINDOW: u64 = 192;

/// One window whose records took `mean` nanoseconds each.
fn window(controller: &mut GroupController, mean: u64) {
    let left = controller.window.left_of_last;
    controller.records_ended(left);
    let now = Nanos(controller.last.0 + mean * WINDOW);
    controller.pass(now, 1);
    controller.records_ended(WINDOW);
}

fn windows(controller: &mut GroupController, means: &[u64]) {
    for mean in means {
        window(controller, *mean);
    }
}

fn tried(controller: &GroupController) -> Option<(u64, bool)> {
    controller.trial.as_ref().map(|trial| (trial.tried.frames, trial.tried.gathers))
}

fn used(controller: &GroupController) -> (u64, bool) {
    (controller.used.frames, controller.used.gathers)
}

/// All pairs of windows of a trial are lost or won.
fn lose(controller: &mut GroupController) {
    windows(controller, &[1000, 1100, 1000, 1100]);
    assert!(controller.trial.is_none());
}

fn win(controller: &mut GroupController) {
    windows(controller, &[1000, 900, 1000, 900, 1000, 900, 1000, 900]);
    assert!(controller.trial.is_none());
}

fn waiting(records: u64, frames_in_flight: u64, rings: u64) -> Waiting {
    Waiting { records, bytes: records * 10, full_bytes: 1000, frames_in_flight, rings }
}

#[test]
fn group_commit_begins_with_four_frames_or_fewer_and_does_not_gather() {
    for (most, frames) in [(1, 1), (3, 3), (4, 4), (16, 4)] {
        assert_eq!(used(&GroupController::new(GroupCommit::Adaptive, most)), (frames, false));
    }
    let fixed = GroupController::new(GroupCommit::Fixed { gather: Nanos(5) }, 16);
    assert_eq!(used(&fixed), (16, false));
    let controller = controller(16);
    assert!(controller.is_due(&waiting(1, 0, 1)));
    // Of each ring.
    assert!(controller.has_slot(7, 2));
    assert!(!controller.has_slot(8, 2));
}

#[test]
fn a_frame_gathers_its_share_of_the_records_under_way() {
    let mut controller = controller(16);
    controller.used.gathers = true;
    // 32 records in four frames of one ring, or in eight of two rings.
    for (rings, share) in [(1, 8), (2, 4)] {
        assert!(!controller.is_due(&waiting(share - 1, 0, rings)));
        assert!(controller.is_due(&waiting(share, 0, rings)));
    }
    // Half a record of all frames is rounded down.
    controller.concurrency = 32 * 16 + 8;
    assert!(controller.is_due(&waiting(8, 0, 1)));
    controller.concurrency = 32 * 16 + 9;
    assert!(!controller.is_due(&waiting(8, 0, 1)));
    let full = Waiting { records: 1, bytes: 1000, full_bytes: 1000, ..waiting(1, 0, 1) };
    assert!(controller.is_due(&full));
    assert!(!controller.is_due(&Waiting { bytes: 999, ..full }));
}

#[test]
fn a_worker_gathers_for_as_long_as_a_frame_takes() {
    let mut controller = controller(16);
    controller.used.gathers = true;
    let (few, many) = (waiting(1, 0, 1), waiting(8, 0, 1));
    let until = Nanos::from_micros(1007);
    assert_eq!(controller.verdict(Nanos::from_micros(7), &few), Verdict::Until(until));
    assert!(controller.is_gathering());
    assert_eq!(controller.verdict(Nanos::from_micros(600), &few), Verdict::Until(until));
    assert_eq!(controller.verdict(Nanos(until.0 - 1), &few), Verdict::Until(until));
    assert_eq!(controller.verdict(until, &few), Verdict::Issue);
    assert!(!controller.is_gathering());
    // Another one begins anew, and ends as soon as the frame has its share.
    let again = Nanos::from_micros(3000);
    assert_eq!(controller.verdict(again, &few), Verdict::Until(Nanos::from_micros(4000)));
    assert_eq!(controller.verdict(Nanos::from_micros(3100), &many), Verdict::Issue);
    assert!(!controller.is_gathering());
    // Frames in flight that must end first put an end to it as well.
    let _ = controller.verdict(again, &few);
    assert_eq!(controller.verdict(again, &waiting(1, 4, 1)), Verdict::Hold);
    assert!(!controller.is_gathering());
    let _ = controller.verdict(again, &few);
    controller.stop_gathering();
    assert!(!controller.is_gathering());
}

#[test]
fn a_fixed_time_is_what_a_frame_gathers_for() {
    let fixed = |gather| GroupController::new(GroupCommit::Fixed { gather: Nanos(gather) }, 2);
    let few = waiting(1, 0, 1);
    assert_eq!(fixed(0).verdict(Nanos(50), &few), Verdict::Issue);
    let mut controller = fixed(30);
    assert_eq!(controller.verdict(Nanos(50), &few), Verdict::Until(Nanos(80)));
    assert_eq!(controller.verdict(Nanos(80), &few), Verdict::Issue);
    assert_eq!(controller.verdict(Nanos(90), &waiting(100, 0, 1)), Verdict::Issue);
    assert_eq!(controller.verdict(Nanos(90), &waiting(100, 2, 1)), Verdict::Hold);
    // Nothing is tried.
    controller.concurrency = 32 * 16;
    windows(&mut controller, &[1000; 40]);
    assert_eq!((used(&controller), tried(&controller)), ((2, false), None));
    assert_eq!(controller.window.ended, 0);
}

#[test]
fn averages_move_by_a_quarter() {
    let mut controller = GroupController::new(GroupCommit::Adaptive, 16);
    controller.frame_ended(Nanos(1000), 33);
    assert_eq!((controller.frame_time, controller.concurrency), (Nanos(1000), (3 * 16 + 528) / 4));
    controller.frame_ended(Nanos(2000), 1);
    assert_eq!((controller.frame_time, controller.concurrency), (Nanos(1250), (3 * 144 + 16) / 4));
}

#[test]
fn a_pause_counts_for_sixteen_frames_at_most() {
    let mut controller = GroupController::new(GroupCommit::Adaptive, 16);
    controller.pass(Nanos(100), 3);
    assert_eq!(controller.window.area, 16 * 3);
    controller.frame_ended(Nanos(1000), 3);
    controller.pass(Nanos(1100), 2);
    assert_eq!(controller.window.area, 16 * 3 + 1000 * 2);
    controller.pass(Nanos(31_100), 5);
    assert_eq!(controller.window.area, 16 * 3 + 1000 * 2 + 16_000 * 5);
}

#[test]
fn a_window_has_64_records_or_four_times_those_under_way() {
    for (concurrency, records) in [(3 * 16, 64), (17 * 16 - 1, 64), (17 * 16, 68), (32 * 16, 128)] {
        let mut controller = controller(16);
        controller.concurrency = concurrency;
        controller.records_ended(records - 1);
        assert_eq!((controller.window.ended, tried(&controller)), (records - 1, None));
        controller.records_ended(1);
        assert_eq!((controller.window.ended, tried(&controller)), (0, Some((2, false))));
    }
}

#[test]
fn records_that_began_before_a_setting_do_not_count_for_it() {
    let mut controller = controller(16);
    window(&mut controller, 1000);
    let begun = controller.last;
    // Twice as many as are under way.
    for (records, left) in [(1, 63), (62, 1), (5, 0)] {
        controller.pass(Nanos(begun.0 + 100 - left), 7);
        controller.records_ended(records);
        assert_eq!(controller.window.left_of_last, left);
        assert_eq!((controller.window.area, controller.window.ended), (0, 0));
    }
    controller.pass(Nanos(begun.0 + 110), 7);
    controller.records_ended(3);
    assert_eq!((controller.window.area, controller.window.ended), (7 * 10, 3));
    // Where nothing is tried the setting is the same.
    lose_from(&mut controller, 1000);
    assert_eq!(controller.window.left_of_last, 0);
}

/// The window that has begun ends, and all pairs of the trial are lost.
fn lose_from(controller: &mut GroupController, first: u64) {
    let now = Nanos(controller.last.0 + first * 125);
    controller.pass(now, 1);
    controller.records_ended(125);
    windows(controller, &[1100, 1000, 1100]);
    assert!(controller.trial.is_none());
}

#[test]
fn windows_of_both_settings_take_turns() {
    let mut controller = controller(16);
    window(&mut controller, 1000);
    let turns: Vec<u64> = (0..8)
        .map(|_| {
            let frames = controller.setting().frames;
            window(&mut controller, 1000);
            frames
        })
        .collect();
    assert_eq!(turns, [4, 2, 4, 2, 4, 2, 4, 2]);
    // As good with fewer frames: it stays.
    assert_eq!((used(&controller), tried(&controller)), ((2, false), None));
    assert_eq!(controller.setting(), Setting { frames: 2, gathers: false });
}

#[test]
fn neighbors_are_tried_in_turn_and_a_direction_that_helps_again() {
    let mut controller = controller(16);
    let mut order = Vec::new();
    for wins in [false, false, true, true, false, true, false] {
        controller.pause_windows = 0;
        window(&mut controller, 1000);
        order.push(tried(&controller));
        match wins {
            true => win(&mut controller),
            false => lose(&mut controller),
        }
    }
    let (half, gathers, double) = (Some((2, false)), Some((4, true)), Some((8, false)));
    assert_eq!(order[..3], [half, gathers, double]);
    // Eight frames, then sixteen, of which no more may be in flight; so the half comes next.
    assert_eq!(order[3..5], [Some((16, false)), Some((8, false))]);
    assert_eq!(order[5..], [Some((16, true)), Some((8, true))]);
    assert_eq!(used(&controller), (16, true));
}

#[test]
fn one_frame_has_no_half_and_no_double() {
    let mut controller = controller(1);
    for gathers in [true, false, true] {
        window(&mut controller, 1000);
        assert_eq!(tried(&controller), Some((1, gathers)));
        win(&mut controller);
        assert_eq!(used(&controller), (1, gathers));
    }
}

/// The setting in use after four windows of each with these latencies.
fn after(mut controller: GroupController, tried_one: [u64; 4]) -> (u64, bool) {
    for latency in tried_one {
        assert!(controller.trial.is_some());
        windows(&mut controller, &[10_000, latency]);
    }
    assert!(controller.trial.is_none());
    used(&controller)
}

#[test]
fn more_commands_must_be_better_and_fewer_may_be_as_good() {
    let with_trial = |used: (u64, bool), next_trial: u32| {
        let mut controller = controller(16);
        controller.used = Setting { frames: used.0, gathers: used.1 };
        controller.next_trial = next_trial;
        window(&mut controller, 10_000);
        controller
    };
    // Half of the frames.
    assert_eq!(after(with_trial((4, false), 0), [10_000; 4]), (2, false));
    assert_eq!(after(with_trial((4, false), 0), [10_000, 9_000, 9_000, 10_004]), (2, false));
    assert_eq!(after(with_trial((4, false), 0), [10_000, 10_000, 10_000, 10_004]), (4, false));
    // Gathering.
    assert_eq!(after(with_trial((4, false), 1), [10_000; 4]), (4, true));
    // Twice the frames, and no gathering.
    for (next_trial, better) in [(2, (8, true)), (1, (4, false))] {
        assert_eq!(after(with_trial((4, true), next_trial), [9800; 4]), better);
        let a_little_worse = [9800, 9800, 9800, 9804];
        assert_eq!(after(with_trial((4, true), next_trial), a_little_worse), (4, true));
    }
}

#[test]
fn a_trial_that_cannot_be_won_ends() {
    let begun = || {
        let mut controller = controller(16);
        window(&mut controller, 1000);
        controller
    };
    let state = |means: &[u64]| {
        let mut controller = begun();
        windows(&mut controller, means);
        (tried(&controller).is_some(), used(&controller).0)
    };
    // Two lost pairs.
    assert_eq!(state(&[1000, 1001, 1000]), (true, 4));
    assert_eq!(state(&[1000, 1001, 1000, 1001]), (false, 4));
    assert_eq!(state(&[1000, 1001, 1000, 900, 1000, 900]), (true, 4));
    assert_eq!(state(&[1000, 1001, 1000, 900, 1000, 900, 1000, 1001]), (false, 4));
    assert_eq!(state(&[1000, 1001, 1000, 900, 1000, 900, 1000, 900]), (false, 2));
    // A quarter more latency in all is enough, but only after whole pairs.
    assert_eq!(state(&[1000, 1250]), (true, 4));
    assert_eq!(state(&[1000, 1251]), (false, 4));
    assert_eq!(state(&[1000, 1100, 500]), (true, 4));
    assert_eq!(state(&[1000, 1100, 500, 500]), (true, 4));
    assert_eq!(state(&[1000, 900, 1000, 3000]), (false, 4));
}

#[test]
fn mean_latencies_are_of_all_records() {
    let sum = |area, ended| Sum { area, ended };
    assert!(sum(1000, 10).is_below(sum(2000, 20), 100));
    assert!(!sum(1010, 10).is_below(sum(2000, 20), 100));
    assert!(sum(1010, 10).is_below(sum(2000, 20), 101));
    assert!(sum(0, 0).is_below(sum(0, 0), 100));
    let mut trial = Trial::new(Setting { frames: 1, gathers: false });
    for (area, ended) in [(1000, 64), (1100, 65), (1200, 66), (1300, 67)] {
        trial.add(sum(area, ended), 100);
    }
    let sums = trial.sums.map(|sum| (sum.area, sum.ended));
    assert_eq!(sums, [(2200, 130), (2400, 132)]);
}

#[test]
fn trials_that_change_nothing_pause() {
    let mut controller = controller(16);
    for windows_between in [1, 1, 1, 65, 257, 257, 257] {
        for left in (0..windows_between).rev() {
            assert_eq!(tried(&controller), None);
            window(&mut controller, 1000);
            assert_eq!(tried(&controller).is_some(), left == 0);
        }
        lose(&mut controller);
    }
    // One that changes something begins anew.
    controller.pause_windows = 0;
    for wins in [true, false, false, false] {
        window(&mut controller, 1000);
        assert!(tried(&controller).is_some());
        match wins {
            true => win(&mut controller),
            false => lose(&mut controller),
        }
    }
    assert_eq!(controller.pause_windows, 64);
    // However many there were.
    controller.kept = 1 << 20;
    controller.pause_windows = 0;
    window(&mut controller, 1000);
    lose(&mut controller);
    assert_eq!(controller.pause_windows, 256);
}

#[test]
fn other_concurrency_ends_a_pause() {
    // Half as much again, or two thirds.
    let cases = [(512, 768, false), (512, 769, true), (768, 512, false), (768, 511, true)];
    for (settled, concurrency, tries) in cases {
        let mut controller = controller(16);
        controller.concurrency = settled;
        for _ in 0..3 {
            window(&mut controller, 1000);
            lose(&mut controller);
        }
        assert_eq!((controller.pause_windows, controller.kept), (64, 3));
        controller.concurrency = concurrency;
        let frame = Nanos(controller.last.0 + 1000);
        controller.pass(frame, 1);
        controller.records_ended(4 * 48);
        assert_eq!(tried(&controller).is_some(), tries, "{concurrency}");
        assert_eq!(controller.kept, if tries { 0 } else { 3 });
        // What it is compared with moves along.
        assert_eq!(controller.settled_concurrency, if tries { concurrency } else { settled });
    }
}

#[test]
fn a_client_that_is_alone_tries_nothing() {
    for (concurrency, tries) in [(16, false), (23, false), (24, true)] {
        let mut controller = controller(16);
        controller.concurrency = concurrency;
        windows(&mut controller, &[1000; 4]);
        assert_eq!(tried(&controller).is_some(), tries, "{concurrency}");
    }
}
