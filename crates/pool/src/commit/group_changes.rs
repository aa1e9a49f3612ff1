//! The changes of the syncing group in order, hashed ahead: while one batch is written, the compute
//! threads take the fingerprints of the next ones.
//!
//! What waits is memory of the group itself, which goes after the group is applied to the map. Only
//! the fingerprints come on top, for [`BATCHES_AHEAD`] batches.

use std::collections::VecDeque;

use forebay_dedup::{Fingerprint, FingerprintKey};
use forebay_device::IoBytes;
use forebay_format::checksum::crc64;
use forebay_rt as rt;
use forebay_txg::Content;
use forebay_units::{BLOCK_LEN, Lba, Nanos, VolumeId};

use crate::Pool;
use crate::dedup::DedupMode;

/// Most extents of a batch.
const BATCH_EXTENTS: usize = 64;
/// A batch ends with the extent that reaches so many bytes.
const BATCH_BYTES: usize = 512 << 10;
/// Batches that are hashed while one is written.
const BATCHES_AHEAD: usize = 8;
/// Batches of so many bytes are hashed on a compute thread, where hashing takes longer than the way
/// there and back.
const MIN_COMPUTE_BYTES: usize = 64 << 10;
/// What hashing a block takes, for the simulation.
const HASH_COST: Nanos = Nanos::from_micros(1);

/// A change of the syncing group.
pub(crate) struct GroupChange {
    pub volume: VolumeId,
    pub lba: Lba,
    pub blocks: u64,
    pub content: Content,
    /// One for each block if the volume was de-duplicated when the batch was read.
    pub hashes: Vec<Fingerprint>,
}

/// The rest of the syncing group's changes.
#[derive(Default)]
pub(crate) struct GroupChanges {
    /// The last change of the last batch.
    read_to: Option<(VolumeId, Lba)>,
    batches: VecDeque<Batch>,
    ready: VecDeque<GroupChange>,
}

struct Batch {
    changes: Vec<GroupChange>,
    /// The extents to hash, by their index in `changes`; the fingerprints of all their blocks.
    hashed: Vec<usize>,
    hashing: Option<rt::JoinHandle<Vec<Fingerprint>>>,
}

impl GroupChanges {
    /// The next change; `None` after the last.
    pub async fn next(&mut self, pool: &Pool) -> Option<GroupChange> {
        while self.ready.is_empty() {
            self.read_ahead(pool);
            let batch = self.batches.pop_front()?;
            self.ready = batch.finish().await.into();
        }
        self.ready.pop_front()
    }

    /// Reads batches until enough are being hashed.
    fn read_ahead(&mut self, pool: &Pool) {
        let is_hashed = |batch: &Batch| batch.hashing.is_some();
        while self.batches.back().is_none_or(is_hashed) && self.batches.len() <= BATCHES_AHEAD {
            let Some(batch) = self.read_batch(pool) else { return };
            self.batches.push_back(batch);
        }
    }

    fn read_batch(&mut self, pool: &Pool) -> Option<Batch> {
        let (mut changes, mut bytes) = (Vec::new(), 0);
        {
            let groups = pool.dirty.groups.borrow();
            let set = groups.syncing().expect("it is being written");
            for (volume, lba, blocks, content) in set.extents_after(self.read_to) {
                bytes += if let Content::Data(data) = &content { data.len() } else { 0 };
                let hashes = Vec::new();
                changes.push(GroupChange { volume, lba, blocks, content, hashes });
                if changes.len() == BATCH_EXTENTS || bytes >= BATCH_BYTES {
                    break;
                }
            }
        }
        let last = changes.last()?;
        self.read_to = Some((last.volume, last.lba));
        Some(Batch::begin(changes, pool))
    }
}

impl Batch {
    /// Begins to hash what is to be de-duplicated.
    fn begin(changes: Vec<GroupChange>, pool: &Pool) -> Self {
        let (mut hashed, mut extents) = (Vec::new(), Vec::new());
        for (at, change) in changes.iter().enumerate() {
            if let Content::Data(data) = &change.content {
                if pool.dedup_mode(change.volume) != DedupMode::Off {
                    hashed.push(at);
                    extents.push(data.clone());
                }
            }
        }
        let key = pool.dedup.key();
        let hashing = (!extents.is_empty()).then(|| rt::spawn(hashes(key, extents)));
        Self { changes, hashed, hashing }
    }

    /// Waits for the hashes and gives them to their extents.
    async fn finish(mut self) -> Vec<GroupChange> {
        if let Some(hashing) = self.hashing {
            let mut all = hashing.await.into_iter();
            for at in self.hashed {
                let change = &mut self.changes[at];
                change.hashes = all.by_ref().take(change.blocks as usize).collect();
            }
        }
        self.changes
    }
}

/// The fingerprints of the blocks of `extents`, in order. The same pass over the bytes computes
/// their sums, which stay with them.
async fn hashes(key: FingerprintKey, extents: Vec<IoBytes>) -> Vec<Fingerprint> {
    let bytes: usize = extents.iter().map(|data| data.len()).sum();
    let all = move || {
        let blocks = extents.iter().flat_map(|data| data.chunks_exact(BLOCK_LEN));
        let blocks = blocks.map(|block| block.try_into().expect("a block's length"));
        let blocks: Vec<&[u8; BLOCK_LEN]> = blocks.collect();
        let fingerprints = key.fingerprints(&blocks);
        extents.iter().for_each(|data| data.sum_blocks(crc64));
        fingerprints
    };
    if bytes < MIN_COMPUTE_BYTES {
        return all();
    }
    rt::compute(Nanos(HASH_COST.0 * (bytes / BLOCK_LEN) as u64), all).await
}
