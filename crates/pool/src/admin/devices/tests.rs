use super::*;

/// A member, and what replaces it in turn.
fn chain(devices: &[u32]) -> MemberConfig {
    let (first, rest) = devices.split_first().expect("a member");
    MemberConfig {
        device: *first,
        path: first.to_string(),
        size_bytes: 0,
        state: MemberUse::Online,
        stale_since: None,
        stale: Vec::new(),
        replacement: (!rest.is_empty()).then(|| Box::new(chain(rest))),
    }
}

fn left_without(gone: u32) -> Vec<u32> {
    let mut first = chain(&[1, 2, 3]);
    forget(&mut first, gone);
    let all = std::iter::successors(Some(&first), |m| m.replacement.as_deref());
    all.map(|m| m.device).collect()
}

#[test]
fn what_replaces_a_device_takes_its_place_and_others_keep_theirs() {
    assert_eq!(left_without(1), [2, 3]);
    assert_eq!(left_without(2), [1, 3]);
    assert_eq!(left_without(3), [1, 2]);
    assert_eq!(left_without(4), [1, 2, 3]);
}
