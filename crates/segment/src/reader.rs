//! Reads that are right or fail: every block is checked, repaired from redundancy when it can be.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_array::Array;
use forebay_device::{DeviceError, ErrorKind, IoBuf, Operation};
use forebay_format::checksum::block_sum;
use forebay_format::footer::{Footer, HEADER_BYTES, SUM_BYTES, footer_blocks};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, Lba, SegmentId, VolumeId};

use crate::SegmentTable;

/// Blocks to read: consecutive on media and in the volume.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Where.
    pub addr: BlockAddr,
    /// Whose.
    pub volume: VolumeId,
    /// First block in the volume.
    pub lba: Lba,
    /// How many.
    pub blocks: u32,
    /// Their checksums, block by block; `None`: it is in the segment's footer.
    pub sums: Vec<Option<u64>>,
}

/// Footers kept in memory for their sums.
const FOOTERS_KEPT: usize = 64;

/// Reads of one pool.
pub struct Reader {
    array: Rc<Array>,
    table: Rc<SegmentTable>,
    pool: u64,
    footers: RefCell<BTreeMap<SegmentId, (u64, Rc<Footer>)>>,
    uses: Cell<u64>,
    repaired: Cell<u64>,
}

impl Reader {
    /// A reader of pool `pool`.
    #[must_use]
    pub fn new(array: Rc<Array>, table: Rc<SegmentTable>, pool: u64) -> Rc<Self> {
        Rc::new(Self {
            array,
            table,
            pool,
            footers: RefCell::default(),
            uses: Cell::new(0),
            repaired: Cell::new(0),
        })
    }

    /// Blocks that were wrong on media and were put right.
    #[must_use]
    pub fn repaired_blocks(&self) -> u64 {
        self.repaired.get()
    }

    /// Reads and checks; what is wrong on media and can be repaired is repaired.
    pub async fn read(&self, wanted: &Wanted) -> Result<IoBuf, DeviceError> {
        let pin = self.table.pin(wanted.addr.segment());
        let sums = self.all_sums(wanted).await?;
        let outcome = self.array.read(wanted.addr, wanted.blocks).await;
        // What could not be read as a whole is tried block by block, in every version there is.
        let mut buf = outcome.unwrap_or_else(|_| IoBuf::zeroed(wanted.blocks as usize * BLOCK_LEN));
        for index in 0..wanted.blocks as usize {
            let lba = Lba(wanted.lba.0 + index as u64);
            let block = &mut buf[index * BLOCK_LEN..(index + 1) * BLOCK_LEN];
            if block_sum(self.pool, wanted.volume, lba, block) != sums[index] {
                let good = self.recover(wanted, index, sums[index]).await?;
                block.copy_from_slice(&good);
            }
        }
        drop(pin);
        Ok(buf)
    }

    async fn recover(&self, wanted: &Wanted, index: usize, sum: u64) -> Result<IoBuf, DeviceError> {
        let addr = wanted.addr.plus(index as u32);
        let lba = Lba(wanted.lba.0 + index as u64);
        let versions = self.array.alternatives(addr).await;
        for candidate in versions.map_err(|e| self.unreadable(wanted, index, &e.to_string()))? {
            if block_sum(self.pool, wanted.volume, lba, &candidate) == sum {
                self.repaired.set(self.repaired.get() + 1);
                // The data is right whether or not the bad copy can be rewritten.
                let _ = self.array.repair(addr, &candidate).await;
                return Ok(candidate);
            }
        }
        Err(self.unreadable(wanted, index, "checksum mismatch, and no copy or parity repairs it"))
    }

    fn unreadable(&self, wanted: &Wanted, index: usize, why: &str) -> DeviceError {
        let lba = wanted.lba.0 + index as u64;
        let detail = format!(
            "block {lba} of volume {} at {}: {why}",
            wanted.volume,
            wanted.addr.plus(index as u32)
        );
        let kind = ErrorKind::Corrupt { detail };
        DeviceError::new("pool", Operation::Read, lba * BLOCK_BYTES, BLOCK_BYTES, kind)
    }

    async fn all_sums(&self, wanted: &Wanted) -> Result<Vec<u64>, DeviceError> {
        if let Some(sums) = wanted.sums.iter().copied().collect::<Option<Vec<u64>>>() {
            return Ok(sums);
        }
        let footer = self.footer(wanted.addr.segment()).await?;
        let start = wanted.addr.block() as usize;
        let mut sums = Vec::with_capacity(wanted.sums.len());
        for (index, sum) in wanted.sums.iter().enumerate() {
            let sum = sum.or_else(|| footer.sums.get(start + index).copied());
            sums.push(sum.ok_or_else(|| {
                self.unreadable(wanted, index, "the segment's footer does not reach it")
            })?);
        }
        Ok(sums)
    }

    /// The footer of a filled segment, checked, from memory or from media.
    pub async fn footer(&self, segment: SegmentId) -> Result<Rc<Footer>, DeviceError> {
        self.uses.set(self.uses.get() + 1);
        if let Some((used, footer)) = self.footers.borrow_mut().get_mut(&segment)
            && footer.birth == self.table.get(segment).birth
        {
            *used = self.uses.get();
            return Ok(footer.clone());
        }
        let _pin = self.table.pin(segment);
        let corrupt = |why: String| {
            let detail = format!("footer of segment {segment}: {why}");
            DeviceError::new("pool", Operation::Read, 0, 0, ErrorKind::Corrupt { detail })
        };
        let geometry = self.array.geometry_of(segment).map_err(|e| corrupt(e.to_string()))?;
        let total = geometry.blocks_per_segment();
        let blocks = footer_blocks(total);
        let addr = BlockAddr::new(segment, total - blocks);
        let judge = |bytes: &[u8]| match Footer::decode(bytes) {
            Ok(footer) if footer.pool == self.pool && footer.segment == segment => Ok(footer),
            Ok(footer) => Err(format!("belongs to segment {}", footer.segment)),
            Err(e) => Err(e.to_string()),
        };
        let first = match self.array.read(addr, blocks).await {
            Ok(bytes) => judge(&bytes),
            Err(e) => Err(e.to_string()),
        };
        let footer = match first {
            Ok(footer) => footer,
            Err(why) => {
                self.repaired_footer(addr, blocks, &judge).await.ok_or_else(|| corrupt(why))?
            }
        };
        debug_assert!(SUM_BYTES * footer.sums.len() + HEADER_BYTES <= blocks as usize * BLOCK_LEN);
        let footer = Rc::new(footer);
        let mut kept = self.footers.borrow_mut();
        if kept.len() >= FOOTERS_KEPT {
            let oldest = kept.iter().min_by_key(|(_, (used, _))| *used).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                kept.remove(&oldest);
            }
        }
        kept.insert(segment, (self.uses.get(), footer.clone()));
        Ok(footer)
    }

    async fn repaired_footer(
        &self,
        addr: BlockAddr,
        blocks: u32,
        judge: &impl Fn(&[u8]) -> Result<Footer, String>,
    ) -> Option<Footer> {
        for skip in doubted_sets(&self.array, addr.segment()) {
            let Ok(bytes) = self.array.read_reconstructed(addr, blocks, &skip).await else {
                continue;
            };
            if let Ok(footer) = judge(&bytes) {
                for block in 0..blocks {
                    let start = block as usize * BLOCK_LEN;
                    let good = &bytes[start..start + BLOCK_LEN];
                    // As above: what was read is right even if the repair fails.
                    let _ = self.array.repair(addr.plus(block), good).await;
                }
                return Some(footer);
            }
        }
        None
    }
}

/// Sets of members to leave out when a run of blocks that is checked as a whole is wrong: each one
/// alone, then (where parity allows) each pair.
pub(crate) fn doubted_sets(array: &Array, segment: SegmentId) -> Vec<Vec<DeviceId>> {
    let Ok(geometry) = array.geometry_of(segment) else { return Vec::new() };
    let number = array.groups().iter().position(|g| g.owns(segment));
    let members: Vec<DeviceId> = array
        .status()
        .into_iter()
        .filter(|member| Some(member.group) == number)
        .map(|member| member.id)
        .collect();
    let mut sets: Vec<Vec<DeviceId>> = Vec::new();
    if geometry.parity_columns() >= 1 {
        sets.extend(members.iter().map(|id| vec![*id]));
    }
    if geometry.parity_columns() >= 2 {
        for (at, first) in members.iter().enumerate() {
            sets.extend(members[at + 1..].iter().map(|second| vec![*first, *second]));
        }
    }
    sets
}
