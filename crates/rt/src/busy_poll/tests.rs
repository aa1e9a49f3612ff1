use super::{
    BusyPoll, FIRST_BACK_OFF, LONG_TURN, MAX_BACK_OFF, MAX_BUSY_POLL, UNDISTURBED_POLLS, WaitEnd,
};
use forebay_units::Nanos;

const SHORT: Nanos = Nanos::from_micros(90);
const LONG: Nanos = Nanos::from_millis(5);

#[test]
fn busy_polling_starts_after_consecutive_short_waits() {
    let mut busy_poll = BusyPoll::default();
    assert_eq!(busy_poll.span(), Nanos::ZERO);
    // A request now and then: the device is quick, the client is not.
    for _ in 0..10 {
        busy_poll.record(SHORT, WaitEnd::Slept);
        assert_eq!(busy_poll.span(), Nanos::ZERO);
        busy_poll.record(LONG, WaitEnd::Slept);
        assert_eq!(busy_poll.span(), Nanos::ZERO);
    }
    busy_poll.record(SHORT, WaitEnd::Slept);
    busy_poll.record(SHORT, WaitEnd::Slept);
    assert_eq!(busy_poll.span(), MAX_BUSY_POLL);
    busy_poll.record(SHORT, WaitEnd::Polled);
    assert_eq!(busy_poll.span(), MAX_BUSY_POLL);
    busy_poll.record(LONG, WaitEnd::Slept);
    assert_eq!(busy_poll.span(), Nanos::ZERO, "one long wait ends it");
}

#[test]
fn turns_with_much_to_do_end_busy_polling() {
    let mut busy_poll = BusyPoll::default();
    waits_until_polling(&mut busy_poll);
    let (short, long) = (Nanos(LONG_TURN.0 / 2), Nanos(4 * LONG_TURN.0));
    busy_poll.record_turn(long);
    busy_poll.record(SHORT, WaitEnd::Polled);
    assert_eq!(busy_poll.span(), MAX_BUSY_POLL, "one long turn is none");
    for _ in 0..8 {
        busy_poll.record_turn(long);
        busy_poll.record(SHORT, WaitEnd::Polled);
    }
    assert_eq!(busy_poll.span(), Nanos::ZERO);
    for _ in 0..32 {
        busy_poll.record_turn(short);
        busy_poll.record(SHORT, WaitEnd::Slept);
    }
    assert_eq!(busy_poll.span(), MAX_BUSY_POLL, "the client writes one at a time again");
}

/// Waits that sleep until the next busy poll.
fn waits_until_polling(busy_poll: &mut BusyPoll) -> u32 {
    let mut waits = 0;
    while busy_poll.span() == Nanos::ZERO {
        busy_poll.record(SHORT, WaitEnd::Slept);
        waits += 1;
    }
    waits
}

#[test]
fn busy_polling_backs_off_longer_after_each_preemption() {
    let mut busy_poll = BusyPoll::default();
    waits_until_polling(&mut busy_poll);
    let mut expected = FIRST_BACK_OFF;
    for _ in 0..10 {
        busy_poll.record(SHORT, WaitEnd::Preempted);
        assert_eq!(waits_until_polling(&mut busy_poll), expected);
        expected = (2 * expected).min(MAX_BACK_OFF);
    }
    assert_eq!(expected, MAX_BACK_OFF);
}

#[test]
fn a_preemption_after_many_busy_polls_counts_as_the_first() {
    let mut busy_poll = BusyPoll::default();
    for _ in 0..10 {
        waits_until_polling(&mut busy_poll);
        busy_poll.record(SHORT, WaitEnd::Preempted);
    }
    waits_until_polling(&mut busy_poll);
    for _ in 1..UNDISTURBED_POLLS {
        busy_poll.record(SHORT, WaitEnd::Polled);
    }
    let mut one_more = busy_poll;
    one_more.record(SHORT, WaitEnd::Polled);
    busy_poll.record(SHORT, WaitEnd::Preempted);
    one_more.record(SHORT, WaitEnd::Preempted);
    assert_eq!(waits_until_polling(&mut busy_poll), MAX_BACK_OFF);
    assert_eq!(waits_until_polling(&mut one_more), FIRST_BACK_OFF);
}
