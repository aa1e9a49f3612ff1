use std::collections::{BTreeSet, VecDeque};

use forebay_device::IoBuf;
use forebay_units::BLOCK_LEN;

use super::{Alternatives, FromParity, MAX_COMPUTED_VERSIONS, MAX_WRITTEN_BACK, sets};
use crate::kernel::kernel_for;

/// A block whose bytes depend on their places, so that wrong versions do not fit by chance.
fn filled(seed: usize) -> IoBuf {
    let bytes: Vec<u8> =
        (0..BLOCK_LEN).map(|at| (at * (seed + 3) + at * at / (seed + 5)) as u8).collect();
    IoBuf::copy_of(&bytes)
}

/// Role 0 is wanted, and is all ones. The roles in `twice` have a wrong version first and the right
/// one second.
fn computed(data: usize, parity: usize, twice: &[usize], spare: usize) -> FromParity {
    let kernel = kernel_for(data, parity);
    let right: Vec<IoBuf> =
        [IoBuf::copy_of(&[1; BLOCK_LEN])].into_iter().chain((1..data).map(filled)).collect();
    let mut extra: Vec<IoBuf> = (0..parity).map(|_| IoBuf::zeroed(BLOCK_LEN)).collect();
    let given: Vec<&[u8]> = right.iter().map(|buf| &buf[..]).collect();
    let mut out: Vec<&mut [u8]> = extra.iter_mut().map(|buf| &mut buf[..]).collect();
    kernel.encode(&given, &mut out);
    let versions = right.into_iter().chain(extra).enumerate();
    let versions: Vec<Vec<IoBuf>> = versions
        .map(|(role, right)| match twice.contains(&role) {
            true => vec![filled(100 + role), right],
            false => vec![right],
        })
        .collect();
    let others: Vec<usize> = (1..data + parity).collect();
    FromParity::new(kernel, 0, versions, sets(&others, spare))
}

fn all(mut computed: FromParity) -> Vec<IoBuf> {
    std::iter::from_fn(|| computed.next()).collect()
}

// All sets of columns of the largest group are few enough for what they give to be written back.
#[test]
fn each_set_of_distrusted_columns_comes_once() {
    let others: Vec<usize> = (1..24).collect();
    for (size, count) in [(0, 1), (1, 23), (2, 253), (3, 1771)] {
        let sets = sets(&others, size);
        let distinct: BTreeSet<BTreeSet<usize>> =
            sets.iter().map(|set| set.iter().copied().collect()).collect();
        assert_eq!((sets.len(), distinct.len()), (count, count), "{size}");
        assert!(distinct.iter().all(|set| set.len() == size));
    }
}

#[test]
fn every_combination_of_few_versions_is_tried() {
    let computed = computed(3, 2, &[1, 2, 4], 1);
    let distinct: BTreeSet<_> = computed.picks.iter().cloned().collect();
    assert_eq!((computed.picks.len(), distinct.len()), (8, 8));
    let found = all(computed);
    // Eight combinations; each of the four other roles is left out once.
    assert_eq!(found.len(), 8 * 4);
    assert!(found.iter().any(|block| block.iter().all(|byte| *byte == 1)));
}

#[test]
fn what_a_long_search_found_is_not_written_back() {
    let others: Vec<usize> = (1..24).collect();
    for (twice, is_long) in [(&[5, 9][..], false), (&[4, 5, 9], true), (&others[..12], true)] {
        let parity = Some(computed(21, 3, twice, 2));
        let mut all = Alternatives { direct: VecDeque::new(), parity, tried: 0 };
        let found = all.any(|block| block.iter().all(|byte| *byte == 1));
        assert_eq!(found, twice.len() < 12);
        assert_eq!(all.may_be_written_back(), !is_long, "{twice:?}: {}", all.tried);
    }
}

#[test]
fn only_what_comes_early_enough_is_written_back() {
    let direct: VecDeque<IoBuf> = (0..300).map(|_| IoBuf::zeroed(1)).collect();
    let mut all = Alternatives { direct, parity: None, tried: 0 };
    for count in 1..=300 {
        all.next().expect("there are so many");
        assert_eq!(all.may_be_written_back(), count <= MAX_WRITTEN_BACK, "version {count}");
    }
}

#[test]
fn combinations_are_limited_by_the_versions_that_they_give() {
    let others: Vec<usize> = (1..24).collect();
    let many = computed(21, 3, &others, 2);
    let given = many.picks.len() * many.distrusted.len();
    assert!(given <= MAX_COMPUTED_VERSIONS, "{given} versions");
    let whole = computed(21, 3, &others, 0);
    assert_eq!((whole.picks.len(), whole.distrusted.len()), (MAX_COMPUTED_VERSIONS, 1));
}

#[test]
fn number_of_computed_versions_is_bounded() {
    // All 23 other roles have two versions: 8 million combinations of 253 sets each.
    let others: Vec<usize> = (1..24).collect();
    let found = all(computed(21, 3, &others, 2));
    assert!(found.len() <= MAX_COMPUTED_VERSIONS);
    // Two or three wrong versions, as many as parity covers, are still sorted out.
    let found = all(computed(21, 3, &[5, 9], 2));
    assert!(found.iter().any(|block| block.iter().all(|byte| *byte == 1)));
    let found = all(computed(21, 3, &[4, 5, 9], 2));
    assert!(found.iter().any(|block| block.iter().all(|byte| *byte == 1)));
}
