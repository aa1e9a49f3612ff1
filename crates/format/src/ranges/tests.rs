use proptest::prelude::*;

use crate::config::{MemberConfig, MemberUse};
use crate::label::CONFIG_SLOT_BYTES;

fn member(stale: Vec<(u32, u32)>) -> MemberConfig {
    MemberConfig {
        device: 1,
        path: "/dev/sdb".into(),
        size_bytes: 1 << 40,
        state: MemberUse::Offline,
        stale_since: Some(7),
        stale,
        replacement: None,
    }
}

// As many as parity may miss, in groups as large as they come: the pool must not stop because their
// list is longer than its place.
#[test]
fn many_stale_ranges_fit_configuration_slot() {
    let stale =
        |first: u32| (0..1 << 15).map(move |i| (first + 2 * i, first + 2 * i + 1)).collect();
    let members: Vec<MemberConfig> = (0..6).map(|group| member(stale(group << 16))).collect();
    let bytes = serde_json::to_vec(&members).unwrap();
    assert!(bytes.len() as u64 <= CONFIG_SLOT_BYTES / 3, "{} bytes", bytes.len());
    assert_eq!(serde_json::from_slice::<Vec<MemberConfig>>(&bytes).unwrap(), members);
}

#[test]
fn invalid_segment_sets_are_refused() {
    let text = serde_json::to_string(&member(vec![(1, 2)])).unwrap();
    assert!(text.contains("[[1,2]]"), "{text}");
    for wrong in ["\"\"", "\"x:1\"", "\"1\"", "\"1:g\"", "\"1048576:1\"", "\"-1:1\"", "7"] {
        let text = text.replace("[[1,2]]", wrong);
        assert!(serde_json::from_str::<MemberConfig>(&text).is_err(), "{wrong}");
    }
    let long = text.replace("[[1,2]]", &format!("\"0:{}\"", "0".repeat((1 << 18) + 1)));
    assert!(serde_json::from_str::<MemberConfig>(&long).is_err());
}

proptest! {
    #[test]
    fn stale_ranges_round_trip(gaps in prop::collection::vec((1u32..9, 1u32..9), 0..900)) {
        let mut at = 0;
        let stale: Vec<(u32, u32)> = gaps
            .into_iter()
            .map(|(gap, len)| {
                let first = at + gap;
                at = first + len;
                (first, at)
            })
            .collect();
        let before = member(stale);
        let text = serde_json::to_string(&before).unwrap();
        prop_assert_eq!(serde_json::from_str::<MemberConfig>(&text).unwrap(), before);
    }
}
