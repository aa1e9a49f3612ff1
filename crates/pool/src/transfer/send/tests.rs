//! Which ranges are one record.

use super::*;

/// A range by blocks.
fn piece(first: u64, blocks: u64, holds: Holds) -> Piece {
    Piece { offset_bytes: first * BLOCK_BYTES, len_bytes: blocks * BLOCK_BYTES, holds }
}

fn repeat(first: u64, blocks: u64, from: u64) -> Piece {
    piece(first, blocks, Holds::Repeat(from * BLOCK_BYTES))
}

#[test]
fn repeats_are_joined_when_both_their_places_and_their_sources_follow() {
    assert!(repeat(10, 2, 3).goes_on_with(&repeat(12, 1, 5)));
    assert!(!repeat(10, 2, 3).goes_on_with(&repeat(12, 1, 6)), "another source");
    assert!(!repeat(10, 2, 3).goes_on_with(&repeat(12, 1, 4)), "a source that it has in part");
    assert!(!repeat(10, 2, 3).goes_on_with(&repeat(13, 1, 5)), "another place");
    assert!(!repeat(10, 2, 3).goes_on_with(&piece(12, 1, Holds::Data)));
}

#[test]
fn records_of_data_end_where_they_are_longest_and_those_of_holes_do_not() {
    const LONGEST: u64 = DATA_BYTES / BLOCK_BYTES;
    let repeated = |first: u64| Holds::Repeat(first * BLOCK_BYTES);
    let kinds: [fn(u64) -> Holds; 2] = [|_| Holds::Data, repeated];
    for holds in kinds {
        let first = piece(1000, LONGEST - 1, holds(0));
        assert!(first.goes_on_with(&piece(999 + LONGEST, 1, holds(LONGEST - 1))));
        assert!(!first.goes_on_with(&piece(999 + LONGEST, 2, holds(LONGEST - 1))));
    }
    let hole = piece(0, 1 << 30, Holds::Hole);
    assert!(hole.goes_on_with(&piece(1 << 30, 1 << 30, Holds::Hole)));
    assert!(!hole.goes_on_with(&piece(1 << 30, 1, Holds::Data)));
}
