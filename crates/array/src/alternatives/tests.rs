use std::collections::BTreeSet;

use forebay_device::IoBuf;
use forebay_units::BLOCK_LEN;

use super::{COMPUTED_MAX, FromParity, sets};
use crate::kernel::kernel_for;

/// Role 0 is wanted; of the roles in `twice` there is a wrong version first and the right one next.
fn computed(data: usize, parity: usize, twice: &[usize], spare: usize) -> FromParity {
    let kernel = kernel_for(data, parity);
    let right: Vec<IoBuf> =
        (0..data).map(|role| IoBuf::copy_of(&[role as u8 + 1; BLOCK_LEN])).collect();
    let mut extra: Vec<IoBuf> = (0..parity).map(|_| IoBuf::zeroed(BLOCK_LEN)).collect();
    let given: Vec<&[u8]> = right.iter().map(|buf| &buf[..]).collect();
    let mut out: Vec<&mut [u8]> = extra.iter_mut().map(|buf| &mut buf[..]).collect();
    kernel.encode(&given, &mut out);
    let versions = right.into_iter().chain(extra).enumerate();
    let versions: Vec<Vec<IoBuf>> = versions
        .map(|(role, right)| match twice.contains(&role) {
            true => vec![IoBuf::copy_of(&[0xee; BLOCK_LEN]), right],
            false => vec![right],
        })
        .collect();
    let others: Vec<usize> = (1..data + parity).collect();
    FromParity::new(kernel, 0, versions, sets(&others, spare))
}

fn all(mut computed: FromParity) -> Vec<IoBuf> {
    std::iter::from_fn(|| computed.next()).collect()
}

#[test]
fn every_choice_of_versions_is_tried_when_they_are_few() {
    let computed = computed(3, 2, &[1, 2, 4], 1);
    let distinct: BTreeSet<_> = computed.picks.iter().cloned().collect();
    assert_eq!((computed.picks.len(), distinct.len()), (8, 8));
    let found = all(computed);
    // Eight choices, and of four other roles each is left out once.
    assert_eq!(found.len(), 8 * 4);
    assert!(found.iter().any(|block| block.iter().all(|byte| *byte == 1)));
}

#[test]
fn members_replaced_at_once_do_not_make_it_endless() {
    // All 23 others have two versions: 8 million choices, 253 sets each.
    let others: Vec<usize> = (1..24).collect();
    let found = all(computed(21, 3, &others, 2));
    assert!(found.len() <= COMPUTED_MAX);
    // Three wrong ones among them, as many as may be: they are still told.
    let found = all(computed(21, 3, &[5, 9], 2));
    assert!(found.iter().any(|block| block.iter().all(|byte| *byte == 1)));
    let found = all(computed(21, 3, &[4, 5, 9], 2));
    assert!(found.iter().any(|block| block.iter().all(|byte| *byte == 1)));
}
