use std::collections::BTreeMap;

use super::*;
use forebay_units::{BLOCK_LEN, SegmentId};
use proptest::prelude::*;

fn key(block: u32, birth: u64) -> BlockKey {
    BlockKey { addr: BlockAddr::new(SegmentId(block / 16), block % 16), birth }
}

fn block(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK_LEN / 8)
}

fn found(cache: &mut MemoryCache, key: BlockKey) -> Option<u64> {
    let mut out = vec![0; BLOCK_LEN];
    let value = |out: &[u8]| u64::from_le_bytes(out[..8].try_into().unwrap());
    cache.get(key, &mut out).then(|| {
        assert_eq!(out, block(value(&out)));
        value(&out)
    })
}

#[test]
fn a_block_is_found_under_its_birth_alone() {
    let mut cache = MemoryCache::new(Policy::Arc, 8 * BLOCK_BYTES);
    cache.keep(key(1, 7), &block(1), Kept::Read);
    // It is there already.
    cache.keep(key(1, 7), &block(1), Kept::Written);
    assert_eq!(cache.counts().kept, 1);
    assert_eq!(found(&mut cache, key(1, 7)), Some(1));
    assert_eq!(found(&mut cache, key(1, 8)), None);
    cache.keep(key(1, 8), &block(2), Kept::Read);
    assert_eq!(found(&mut cache, key(1, 7)), None);
    assert_eq!(found(&mut cache, key(1, 8)), Some(2));
    let CacheCounts { hits, misses, .. } = cache.counts();
    assert_eq!((hits, misses, cache.used_bytes()), (2, 2, BLOCK_BYTES));
}

#[test]
fn a_stream_that_is_read_ahead_leaves_what_is_used_again() {
    let mut cache = MemoryCache::new(Policy::Arc, 64 * BLOCK_BYTES);
    for number in 0..32 {
        cache.keep(key(number, 1), &block(1), Kept::Read);
        assert!(found(&mut cache, key(number, 1)).is_some());
    }
    for number in 1000..2000 {
        cache.keep(key(number, 1), &block(2), Kept::Ahead);
        assert!(found(&mut cache, key(number, 1)).is_some());
    }
    assert!((0..32).all(|number| cache.contains(key(number, 1))));
    assert_eq!(cache.counts().read_ahead, 1000);
    assert_eq!(cache.counts().read_ahead_unused, 0);
}

#[test]
fn blocks_that_left_are_told_once() {
    let mut cache = MemoryCache::new(Policy::Lru, 4 * BLOCK_BYTES);
    let told = |cache: &mut MemoryCache| {
        let mut told = Vec::new();
        cache.take_evicted(|key| told.push(key));
        told
    };
    cache.keep(key(0, 1), &block(1), Kept::Read);
    cache.note_evictions(true);
    for number in 1..7 {
        cache.keep(key(number, 1), &block(1), Kept::Read);
    }
    assert_eq!(told(&mut cache), [key(0, 1), key(1, 1), key(2, 1)]);
    assert_eq!(told(&mut cache), []);
    for number in 7..11 {
        cache.keep(key(number, 1), &block(1), Kept::Ahead);
    }
    assert_eq!(told(&mut cache).len(), 4);
    // Those that were read ahead for nothing, and what no longer belongs to a volume, are not.
    cache.keep(key(11, 1), &block(1), Kept::Read);
    cache.drop_run(key(11, 1).addr, 1);
    assert_eq!(told(&mut cache), []);
    // It is as large as before again.
    cache.set_limit(0);
    cache.set_limit(4 * BLOCK_BYTES);
    for number in 12..18 {
        cache.keep(key(number, 1), &block(1), Kept::Read);
    }
    assert_eq!(told(&mut cache), [key(12, 1), key(13, 1)]);
}

#[test]
fn what_was_read_ahead_for_nothing_is_counted() {
    let mut cache = MemoryCache::new(Policy::Lru, 4 * BLOCK_BYTES);
    for number in 0..6 {
        cache.keep(key(number, 1), &block(1), Kept::Ahead);
    }
    assert_eq!(cache.counts().read_ahead_unused, 2);
    assert_eq!(cache.counts().evictions, 2);
}

#[test]
fn a_ghost_that_comes_back_is_counted() {
    let mut cache = MemoryCache::new(Policy::Arc, 2 * BLOCK_BYTES);
    for number in [0, 0, 1, 2] {
        if found(&mut cache, key(number, 1)).is_none() {
            cache.keep(key(number, 1), &block(1), Kept::Read);
        }
    }
    // Block 1 has left for block 2, and comes back.
    assert!(!cache.contains(key(1, 1)));
    cache.keep(key(1, 1), &block(9), Kept::Read);
    assert_eq!(cache.counts().ghost_hits, 1);
    assert_eq!(found(&mut cache, key(1, 1)), Some(9));
}

#[test]
fn a_cache_of_no_bytes_keeps_nothing() {
    let mut cache = MemoryCache::new(Policy::Lru, BLOCK_BYTES - 1);
    cache.keep(key(0, 0), &block(1), Kept::Read);
    assert!(cache.is_off() && !cache.contains(key(0, 0)));
    cache.set_limit(2 * BLOCK_BYTES);
    cache.keep(key(0, 0), &block(1), Kept::Read);
    assert!(cache.contains(key(0, 0)));
    cache.set_limit(0);
    assert_eq!((cache.used_bytes(), cache.memory_bytes()), (0, 0));
}

#[test]
fn a_smaller_cache_gives_its_memory_back() {
    let mut cache = MemoryCache::new(Policy::Lru, 40 * BLOCK_BYTES);
    for number in 0..40 {
        cache.keep(key(number, 1), &block(7), Kept::Read);
    }
    let entries = 40 * ENTRY_BYTES;
    assert_eq!(cache.memory_bytes(), 40 * BLOCK_BYTES + entries);
    // Entries that are not in use take memory all the same.
    cache.drop_run(key(0, 1).addr, 16);
    assert_eq!(cache.memory_bytes(), 24 * BLOCK_BYTES + entries);
    cache.set_limit(8 * BLOCK_BYTES);
    assert_eq!(cache.memory_bytes(), 8 * BLOCK_BYTES + entries);
    // What the system had meanwhile is zeros.
    for _ in 0..32 {
        let taken = cache.slab.take().unwrap();
        assert!(cache.slab.bytes(&taken).iter().all(|byte| *byte == 0));
    }
    assert!((32..40).all(|number| found(&mut cache, key(number, 1)) == Some(7)));
}

#[derive(Clone, Debug)]
enum Act {
    Read(u32),
    Ahead(u32),
    /// The segment of a block is opened again.
    Reborn(u32),
    Move(u32, u32),
    Drop(u32, u32),
    Limit(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        12 => (0..96u32).prop_map(Act::Read),
        4 => (0..96u32).prop_map(Act::Ahead),
        1 => (0..96u32).prop_map(Act::Reborn),
        2 => (0..96u32, 0..96u32).prop_map(|(from, to)| Act::Move(from, to)),
        2 => (0..96u32, 1..4u32).prop_map(|(at, blocks)| Act::Drop(at, blocks)),
        1 => (0..40u64).prop_map(Act::Limit),
    ]
}

/// The content of every block, as if each were read from media.
struct Media {
    births: [u64; 6],
    contents: BTreeMap<(u32, u64), u64>,
    next: u64,
}

impl Media {
    fn key(&self, block: u32) -> BlockKey {
        key(block, self.births[(block / 16) as usize])
    }

    /// What the block holds; it is written when it was not since the birth of its segment.
    fn content(&mut self, block: u32) -> u64 {
        let birth = self.births[(block / 16) as usize];
        self.next += 1;
        *self.contents.entry((block, birth)).or_insert(self.next)
    }
}

proptest! {
    /// Blocks that are asked for together are found as those that are asked for one by one, and
    /// leave the same cache behind.
    #[test]
    fn many_blocks_at_once_are_as_one_after_the_other(
        rounds in prop::collection::vec(prop::collection::vec((0..96u32, 1..3u64), 1..12), 1..40),
        policy in prop::sample::select(&Policy::ALL[..]),
        limit in 0u64..40,
    ) {
        let mut caches = [0, 1].map(|_| MemoryCache::new(policy, limit * BLOCK_BYTES));
        caches.iter_mut().for_each(|cache| cache.note_evictions(true));
        for (round, blocks) in rounds.into_iter().enumerate() {
            let keys: Vec<_> = blocks.iter().map(|(at, birth)| key(*at, *birth)).collect();
            let [one, all] = &mut caches;
            let each: Vec<_> = keys.iter().map(|key| found(one, *key)).collect();
            // Places in another order than the keys.
            let place = |at: usize| (keys.len() - 1 - at) * BLOCK_LEN;
            let places: Vec<_> = keys.iter().copied().zip((0..).map(place)).collect();
            let mut out = vec![0; keys.len() * BLOCK_LEN];
            let there = all.get_all(&places, &mut out);
            for (at, value) in each.iter().enumerate() {
                prop_assert_eq!(there[at], value.is_some());
                let expected = block(value.unwrap_or(0));
                prop_assert!(out[place(at)..place(at) + BLOCK_LEN] == expected[..]);
            }
            let why = [Kept::Read, Kept::Ahead, Kept::Written][round % 3];
            for cache in &mut caches {
                for key in &keys {
                    let value = u64::from(key.addr.block()) * 1000 + key.birth;
                    cache.keep(*key, &block(value), why);
                }
            }
            let mut left = [Vec::new(), Vec::new()];
            for (cache, left) in caches.iter_mut().zip(&mut left) {
                cache.take_evicted(|key| left.push(key));
            }
            prop_assert_eq!(&left[0], &left[1]);
            prop_assert_eq!(caches[0].counts(), caches[1].counts());
        }
    }

    /// Whatever happens, what is found is what the media hold, and the size holds.
    #[test]
    fn a_cache_is_never_wrong_nor_too_large(
        acts in prop::collection::vec(act(), 1..400),
        policy in prop::sample::select(&Policy::ALL[..]),
        limit in 0u64..40,
    ) {
        let mut cache = MemoryCache::new(policy, limit * BLOCK_BYTES);
        let mut media = Media { births: [1; 6], contents: BTreeMap::new(), next: 0 };
        let mut births = 1;
        for act in acts {
            match act {
                Act::Read(at) => {
                    let (key, expected) = (media.key(at), media.content(at));
                    let was_there = cache.contains(key);
                    match found(&mut cache, key) {
                        Some(value) => prop_assert_eq!(value, expected),
                        None => {
                            prop_assert!(!was_there);
                            cache.keep(key, &block(expected), Kept::Read);
                        }
                    }
                    prop_assert_eq!(cache.contains(key), !cache.is_off());
                }
                Act::Ahead(at) => {
                    let (key, expected) = (media.key(at), media.content(at));
                    cache.keep(key, &block(expected), Kept::Ahead);
                }
                Act::Reborn(at) => {
                    births += 1;
                    media.births[(at / 16) as usize] = births;
                }
                Act::Move(from, to) => {
                    // Only an address that is not in use since its segment's birth takes a block.
                    let to_birth = media.births[(to / 16) as usize];
                    if !media.contents.contains_key(&(to, to_birth)) {
                        let content = media.content(from);
                        media.contents.insert((to, to_birth), content);
                        cache.rename(media.key(from), media.key(to));
                        prop_assert!(!cache.contains(media.key(from)));
                    }
                }
                Act::Drop(at, blocks) => {
                    let addr = media.key(at).addr;
                    let blocks = blocks.min(16 - at % 16);
                    cache.drop_run(addr, blocks);
                    prop_assert!(!cache.contains(media.key(at)));
                }
                Act::Limit(blocks) => cache.set_limit(blocks * BLOCK_BYTES),
            }
            prop_assert!(cache.used_bytes() <= cache.limit_bytes());
            let blocks = cache.entries.iter().filter(|entry| entry.data.is_some()).count() as u64;
            prop_assert_eq!(blocks * BLOCK_BYTES, cache.used_bytes());
            prop_assert_eq!(cache.index.len() + cache.unused.len(), cache.entries.len());
        }
    }
}
