//! BLAKE3 of many blocks at once.
//!
//! The library fills its vectors with chunks of one input, and a block has four. Here the trees of
//! up to sixteen blocks are walked together, level by level, by the library's vector function
//! (BLAKE3, one function, fast everywhere, sections 2.2, 2.4 and 2.5).

use blake3::IncrementCounter;
use blake3::platform::Platform;
use forebay_units::BLOCK_LEN;

/// Bytes of a chunk, of a chaining value, and of a compression's input.
const CHUNK_LEN: usize = blake3::CHUNK_LEN;
const CV_LEN: usize = blake3::OUT_LEN;
const PARENT_LEN: usize = 2 * CV_LEN;
/// Chunks of a block.
const CHUNKS: usize = BLOCK_LEN / CHUNK_LEN;

/// Flags of a compression (section 2.2).
const CHUNK_START: u8 = 1 << 0;
const CHUNK_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;
const ROOT: u8 = 1 << 3;
const KEYED_HASH: u8 = 1 << 4;

/// Most blocks that are hashed at a time: the widest vectors hold so many words.
const LANES: usize = 16;
/// Fewer blocks take longer together than one by one.
const MIN_LANES: usize = 4;

type Cv = [u8; CV_LEN];

/// Hashes blocks of [`BLOCK_LEN`] bytes with a key.
pub(crate) struct Lanes<'a> {
    key: &'a [u8; blake3::KEY_LEN],
    words: [u32; 8],
    platform: Platform,
}

impl<'a> Lanes<'a> {
    pub fn new(key: &'a [u8; blake3::KEY_LEN]) -> Self {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(key.chunks_exact(4)) {
            *word = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        }
        Self { key, words, platform: Platform::detect() }
    }

    /// Hands out the keyed hashes of blocks, in order.
    pub fn hashes(&self, blocks: &[&[u8; BLOCK_LEN]], mut each: impl FnMut(&Cv)) {
        for group in blocks.chunks(LANES) {
            if group.len() < MIN_LANES {
                let one = |block: &&[u8; BLOCK_LEN]| blake3::keyed_hash(self.key, &block[..]);
                group.iter().map(one).for_each(|hash| each(hash.as_bytes()));
            } else {
                self.together(group).iter().take(group.len()).for_each(&mut each);
            }
        }
    }

    /// The hashes of at most [`LANES`] blocks.
    fn together(&self, blocks: &[&[u8; BLOCK_LEN]]) -> [Cv; LANES] {
        let mut level = [[[0; CV_LEN]; LANES]; CHUNKS];
        for (chunk, cvs) in level.iter_mut().enumerate() {
            let inputs: [&[u8; CHUNK_LEN]; LANES] = std::array::from_fn(|lane| {
                let block = blocks[lane.min(blocks.len() - 1)];
                block[chunk * CHUNK_LEN..][..CHUNK_LEN].try_into().expect("a chunk")
            });
            let (inputs, flags) = (&inputs[..blocks.len()], (CHUNK_START, CHUNK_END));
            self.compress(inputs, chunk as u64, 0, flags, cvs);
        }
        let [first, second, third, fourth] = &level;
        let (mut left, mut right) = ([[0; CV_LEN]; LANES], [[0; CV_LEN]; LANES]);
        self.parents(blocks.len(), (first, second), 0, &mut left);
        self.parents(blocks.len(), (third, fourth), 0, &mut right);
        let mut roots = [[0; CV_LEN]; LANES];
        self.parents(blocks.len(), (&left, &right), ROOT, &mut roots);
        roots
    }

    /// The parents of the first `len` pairs of chaining values.
    fn parents(
        &self,
        len: usize,
        (left, right): (&[Cv; LANES], &[Cv; LANES]),
        flags: u8,
        out: &mut [Cv; LANES],
    ) {
        let mut pairs = [[0; PARENT_LEN]; LANES];
        for (pair, (left, right)) in pairs.iter_mut().zip(left.iter().zip(right)) {
            pair[..CV_LEN].copy_from_slice(left);
            pair[CV_LEN..].copy_from_slice(right);
        }
        let inputs: [&[u8; PARENT_LEN]; LANES] = std::array::from_fn(|lane| &pairs[lane]);
        self.compress(&inputs[..len], 0, PARENT | flags, (0, 0), out);
    }

    /// One level of the tree: the chaining values of `inputs`, all with the same counter.
    fn compress<const N: usize>(
        &self,
        inputs: &[&[u8; N]],
        counter: u64,
        flags: u8,
        (start, end): (u8, u8),
        out: &mut [Cv; LANES],
    ) {
        let (flags, out) = (KEYED_HASH | flags, &mut out.as_flattened_mut()[..]);
        let same = IncrementCounter::No;
        self.platform.hash_many(inputs, &self.words, counter, same, flags, start, end, out);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hashes_of_many_blocks_are_those_of_each(
            key: [u8; 32],
            seeds in prop::collection::vec(any::<u64>(), 0..40),
        ) {
            let block = |seed: &u64| {
                let words = (0..BLOCK_LEN as u64 / 8).map(|at| {
                    (seed ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32)
                });
                let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
                <[u8; BLOCK_LEN]>::try_from(bytes).unwrap()
            };
            let blocks: Vec<[u8; BLOCK_LEN]> = seeds.iter().map(block).collect();
            let mut found = Vec::new();
            Lanes::new(&key).hashes(&blocks.iter().collect::<Vec<_>>(), |cv| found.push(*cv));
            let wanted = blocks.iter().map(|block| *blake3::keyed_hash(&key, block).as_bytes());
            prop_assert_eq!(found, wanted.collect::<Vec<_>>());
        }
    }
}
