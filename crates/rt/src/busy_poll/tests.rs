use super::{BACK_OFF_WAITS, BusyPoll, MAX_BUSY_POLL, WaitEnd};
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
fn busy_polling_backs_off_after_preemption() {
    let mut busy_poll = BusyPoll::default();
    busy_poll.record(SHORT, WaitEnd::Slept);
    busy_poll.record(SHORT, WaitEnd::Slept);
    busy_poll.record(SHORT, WaitEnd::Preempted);
    for _ in 0..BACK_OFF_WAITS {
        assert_eq!(busy_poll.span(), Nanos::ZERO);
        busy_poll.record(SHORT, WaitEnd::Slept);
    }
    assert_eq!(busy_poll.span(), MAX_BUSY_POLL);
}
