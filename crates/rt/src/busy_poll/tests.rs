use super::{Ended, MOST, Patience, WAITS_OF_REST};
use forebay_units::Nanos;

const SHORT: Nanos = Nanos::from_micros(90);
const LONG: Nanos = Nanos::from_millis(5);

#[test]
fn only_a_row_of_short_waits_makes_patient() {
    let mut patience = Patience::default();
    assert_eq!(patience.span(), Nanos::ZERO);
    // A request now and then: the device is quick, the client is not.
    for _ in 0..10 {
        patience.note(SHORT, Ended::Slept);
        assert_eq!(patience.span(), Nanos::ZERO);
        patience.note(LONG, Ended::Slept);
        assert_eq!(patience.span(), Nanos::ZERO);
    }
    patience.note(SHORT, Ended::Slept);
    patience.note(SHORT, Ended::Slept);
    assert_eq!(patience.span(), MOST);
    patience.note(SHORT, Ended::Seen);
    assert_eq!(patience.span(), MOST);
    // One long wait, and it sleeps again.
    patience.note(LONG, Ended::Slept);
    assert_eq!(patience.span(), Nanos::ZERO);
}

#[test]
fn who_was_in_the_way_rests() {
    let mut patience = Patience::default();
    patience.note(SHORT, Ended::Slept);
    patience.note(SHORT, Ended::Slept);
    patience.note(SHORT, Ended::InTheWay);
    for _ in 0..WAITS_OF_REST {
        assert_eq!(patience.span(), Nanos::ZERO);
        patience.note(SHORT, Ended::Slept);
    }
    assert_eq!(patience.span(), MOST);
}
