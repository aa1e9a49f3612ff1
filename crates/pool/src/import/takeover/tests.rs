//! When a takeover takes a refusal for certain.

use super::*;

#[test]
fn a_refusal_is_certain_when_it_comes_again_after_heartbeats_were_watched() {
    let options = ImportOptions::default();
    let (one, other) = (ImportErrorKind::Ambiguous, ImportErrorKind::Destroyed);
    // Nothing was watched, so there is no other owner.
    let mut takeover = Takeover::new(&options, false);
    assert!(takeover.is_certain(&one) && takeover.is_certain(&other));
    let mut takeover = Takeover { watches: 1, ..Takeover::new(&options, false) };
    for (refusal, is_certain) in
        [(&one, false), (&other, false), (&one, false), (&one, true), (&other, false)]
    {
        assert_eq!(takeover.is_certain(refusal), is_certain);
    }
    for (watches, is_certain) in [(MAX_WATCHES - 1, false), (MAX_WATCHES, true)] {
        let mut takeover = Takeover { watches, ..Takeover::new(&options, false) };
        assert_eq!(takeover.is_certain(&one), is_certain);
    }
}
