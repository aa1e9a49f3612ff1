use forebay_units::{BlockAddr, SegmentId};

use super::*;

/// Blocks of volume 7 that lie as they are numbered in it.
fn fetch(segment: u32, block: u32, blocks: u32) -> Fetch {
    let addr = BlockAddr::new(SegmentId(segment), block);
    let lba = Lba(u64::from(block));
    let sums = vec![None; blocks as usize];
    let wanted = Wanted { addr, volume: VolumeId(7), lba, blocks, sums };
    let key = BlockKey { addr, birth: 3 };
    Fetch { at_bytes: block as usize * BLOCK_LEN, lba, key, wanted }
}

#[test]
fn only_what_goes_on_in_every_respect_follows() {
    let changed = |change: fn(&mut Fetch)| {
        let mut next = fetch(5, 14, 2);
        change(&mut next);
        next
    };
    let first = fetch(5, 10, 4);
    assert!(first.is_followed_by(&changed(|_| {})));
    let others: [fn(&mut Fetch); 7] = [
        |next| next.at_bytes += BLOCK_LEN,
        |next| next.lba.0 += 1,
        |next| next.key.birth += 1,
        |next| next.wanted.volume.0 += 1,
        |next| next.wanted.lba.0 += 1,
        |next| next.wanted.addr = BlockAddr::new(SegmentId(6), 14),
        |next| next.wanted.addr = BlockAddr::new(SegmentId(5), 15),
    ];
    for (number, other) in others.into_iter().enumerate() {
        assert!(!first.is_followed_by(&changed(other)), "{number}");
    }
}

/// What one command reads each, as segment and first block of its parts.
fn gathered(parts: &[(u32, u32, u32)]) -> Vec<Vec<(u32, u32)>> {
    let fetches = parts.iter().map(|(segment, block, blocks)| fetch(*segment, *block, *blocks));
    let place = |fetch: &Fetch| (fetch.wanted.addr.segment().0, fetch.wanted.addr.block());
    gather(fetches.collect()).iter().map(|read| read.iter().map(place).collect()).collect()
}

#[test]
fn parts_are_read_together_over_small_gaps() {
    // As many blocks between them as are read over, and one more.
    assert_eq!(gathered(&[(1, 20, 3), (1, 10, 8)]), [[(1, 10), (1, 20)]]);
    assert_eq!(gathered(&[(1, 21, 3), (1, 10, 8)]), [[(1, 10)], [(1, 21)]]);
    // The gap counts from the last part, not from the first.
    assert_eq!(gathered(&[(1, 0, 1), (1, 3, 2), (1, 7, 1)]), [[(1, 0), (1, 3), (1, 7)]]);
    assert_eq!(gathered(&[(1, 0, 4), (2, 4, 4)]), [[(1, 0)], [(2, 4)]]);
    // As long as a command may be, and one block longer.
    assert_eq!(gathered(&[(1, 40, 100), (1, 140, 156)]), [[(1, 40), (1, 140)]]);
    assert_eq!(gathered(&[(1, 40, 100), (1, 140, 157)]), [[(1, 40)], [(1, 140)]]);
}
