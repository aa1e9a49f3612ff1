//! Reads that are right or fail: every block is checked, repaired from redundancy when it can be.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use forebay_array::Array;
use forebay_device::{DeviceError, ErrorKind, IoBuf, IoBytes, Operation};
use forebay_format::checksum::block_sum;
use forebay_format::footer::{Footer, FooterPlace, pages_of, sum_in_page};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, Lba, SegmentId, VolumeId};

use crate::SegmentTable;
use crate::pages::Pages;

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

/// A read that failed.
#[derive(Clone, Debug)]
pub struct Unread {
    /// What is wrong with the first block that could not be had.
    pub error: DeviceError,
    /// Blocks that could not be had, counted from the first one wanted; the first of them when there
    /// are many.
    pub blocks: Vec<u32>,
}

/// Bad blocks after which a read looks for no more: each may cost many reads.
const BAD_MAX: usize = 64;

/// Pieces that were read together.
pub struct Together {
    span: IoBuf,
    pieces: Vec<WantedBytes>,
}

enum WantedBytes {
    /// Right in what was read in one go.
    InSpan(Range<usize>),
    Apart(Result<IoBuf, Unread>),
}

impl Together {
    /// The pieces in the order in which they were asked for.
    pub fn pieces(&self) -> impl Iterator<Item = Result<&[u8], &Unread>> {
        self.pieces.iter().map(|piece| match piece {
            WantedBytes::InSpan(range) => Ok(&self.span[range.clone()]),
            WantedBytes::Apart(outcome) => outcome.as_deref(),
        })
    }
}

/// Reads of one pool.
pub struct Reader {
    array: Rc<Array>,
    table: Rc<SegmentTable>,
    pool: u64,
    pages: Pages,
    repaired: Cell<u64>,
}

impl Reader {
    /// A reader of pool `pool`, which keeps sums of sequential data in at most `pages_bytes` of
    /// memory: a page of 4 KiB has those of 3 MiB of data.
    #[must_use]
    pub fn new(array: Rc<Array>, table: Rc<SegmentTable>, pool: u64, pages_bytes: u64) -> Rc<Self> {
        let (pages, repaired) = (Pages::new(pages_bytes), Cell::new(0));
        Rc::new(Self { array, table, pool, pages, repaired })
    }

    /// Memory that pages of footers take, in bytes.
    #[must_use]
    pub fn pages_bytes(&self) -> u64 {
        self.pages.bytes()
    }

    /// Blocks that were wrong on media and were put right.
    #[must_use]
    pub fn repaired_blocks(&self) -> u64 {
        self.repaired.get()
    }

    /// Reads and checks; what is wrong on media and can be repaired is repaired.
    pub async fn read(&self, wanted: &Wanted) -> Result<IoBuf, DeviceError> {
        self.read_each(wanted).await.map_err(|unread| unread.error)
    }

    /// The same; who fails says which blocks could not be had.
    pub async fn read_each(&self, wanted: &Wanted) -> Result<IoBuf, Unread> {
        let pin = self.table.pin(wanted.addr.segment());
        let data = self.array.read(wanted.addr, wanted.blocks);
        let mut bad = Vec::new();
        let mut first_error = None;
        // Sums that memory does not have are read with the data, not before it.
        let (outcome, missing) = if wanted.sums.iter().all(Option::is_some) {
            (data.await, Vec::new())
        } else if let Some(missing) = self.kept_sums(wanted) {
            (data.await, missing)
        } else {
            rt::join(data, self.missing_sums(wanted)).await
        };
        // What could not be read as a whole is tried block by block, in every version there is.
        let mut buf = outcome.unwrap_or_else(|_| IoBuf::zeroed(wanted.blocks as usize * BLOCK_LEN));
        for index in 0..wanted.blocks as usize {
            let lba = Lba(wanted.lba.0 + index as u64);
            let block = &mut buf[index * BLOCK_LEN..(index + 1) * BLOCK_LEN];
            let sum = wanted.sums[index].map_or_else(|| missing[index].clone(), Ok);
            let outcome = match sum {
                Ok(sum) if block_sum(self.pool, wanted.volume, lba, block) == sum => continue,
                Ok(sum) => {
                    self.recover(wanted, index, sum).await.map(|g| block.copy_from_slice(&g))
                }
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                first_error.get_or_insert(error);
                bad.push(index as u32);
                if bad.len() >= BAD_MAX {
                    break;
                }
            }
        }
        drop(pin);
        match first_error {
            None => Ok(buf),
            Some(error) => Err(Unread { error, blocks: bad }),
        }
    }

    /// Reads pieces of one segment, in the order of their addresses, with what lies between them in
    /// one go. A piece that is not right in there is read by itself, as [`Reader::read_each`] does.
    pub async fn read_together(&self, wanted: &[&Wanted]) -> Together {
        let (first, last) = (wanted[0], wanted[wanted.len() - 1]);
        if wanted.len() == 1 {
            let piece = WantedBytes::Apart(self.read_each(first).await);
            return Together { span: IoBuf::recycled(0), pieces: vec![piece] };
        }
        // Until the last piece has been read: what moves meanwhile leaves its old place as it is.
        let pin = self.table.pin(first.addr.segment());
        let from = first.addr.block();
        let blocks = last.addr.block() + last.blocks - from;
        // Most have the same page of the footer, if they need one: one after the other reads it once.
        let sums = async {
            let mut sums = Vec::with_capacity(wanted.len());
            for wanted in wanted {
                sums.push(self.missing_sums(wanted).await);
            }
            sums
        };
        let (span, sums) = rt::join(self.array.read(first.addr, blocks), sums).await;
        let span = span.ok();
        let mut pieces = Vec::with_capacity(wanted.len());
        for (wanted, sums) in wanted.iter().zip(sums) {
            let start = (wanted.addr.block() - from) as usize * BLOCK_LEN;
            let range = start..start + wanted.blocks as usize * BLOCK_LEN;
            let right = span.as_ref().is_some_and(|span| {
                let mut blocks =
                    span[range.clone()].chunks(BLOCK_LEN).zip(sums).zip(wanted.lba.0..);
                blocks.all(|((block, sum), lba)| {
                    let here = block_sum(self.pool, wanted.volume, Lba(lba), block);
                    sum.is_ok_and(|sum| sum == here)
                })
            });
            pieces.push(match right {
                true => WantedBytes::InSpan(range),
                false => WantedBytes::Apart(self.read_each(wanted).await),
            });
        }
        drop(pin);
        Together { span: span.unwrap_or_else(|| IoBuf::recycled(0)), pieces }
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

    /// What the footer says of all blocks of `wanted`, when one page says it and memory has it.
    fn kept_sums(&self, wanted: &Wanted) -> Option<Vec<Result<u64, DeviceError>>> {
        let (first, end) = (wanted.addr.block(), wanted.addr.block() + wanted.blocks);
        let (place, total) = self.footer_of(wanted.addr.segment()).ok()?;
        let number = FooterPlace::page_of(first);
        if end + number >= total || FooterPlace::page_of(end - 1) != number {
            return None;
        }
        let page = self.pages.get(&place, number)?;
        Some((first..end).map(|block| Ok(sum_in_page(&page, block))).collect())
    }

    /// What the footer says of the blocks of `wanted` whose sums memory does not have.
    async fn missing_sums(&self, wanted: &Wanted) -> Vec<Result<u64, DeviceError>> {
        let segment = wanted.addr.segment();
        let first = wanted.addr.block();
        let total = self.footer_of(segment).map(|(_, total)| total);
        let mut sums = Vec::with_capacity(wanted.blocks as usize);
        let mut page = None;
        for (index, known) in wanted.sums.iter().enumerate() {
            let block = first + index as u32;
            let sum = match (known, &total) {
                (Some(sum), _) => Ok(*sum),
                (None, Err(error)) => Err(error.clone()),
                // It would lie behind the page that has its sum.
                (None, Ok(total)) if block + 1 + FooterPlace::page_of(block) >= *total => {
                    Err(self.unreadable(wanted, index, "the segment's footer does not reach it"))
                }
                (None, Ok(_)) => {
                    let number = FooterPlace::page_of(block);
                    if !matches!(&page, Some((known, _)) if *known == number) {
                        page = Some((number, self.page(segment, number).await));
                    }
                    let (_, bytes) = page.as_ref().expect("just read");
                    bytes.as_ref().map(|bytes| sum_in_page(bytes, block)).map_err(Clone::clone)
                }
            };
            sums.push(sum);
        }
        sums
    }

    /// Where a segment's footer belongs, and the blocks of the segment, which it ends.
    fn footer_of(&self, segment: SegmentId) -> Result<(FooterPlace, u32), DeviceError> {
        let geometry = self.array.geometry_of(segment);
        let geometry = geometry.map_err(|e| corrupt(segment, &e.to_string()))?;
        let total = geometry.blocks_per_segment();
        let birth = self.table.get(segment).birth;
        Ok((FooterPlace { pool: self.pool, segment, birth }, total))
    }

    /// One page of a filled segment's footer, from memory or from media, checked and repaired.
    async fn page(&self, segment: SegmentId, number: u32) -> Result<IoBytes, DeviceError> {
        let (place, total) = self.footer_of(segment)?;
        if let Some(bytes) = self.pages.get(&place, number) {
            return Ok(bytes);
        }
        let addr = BlockAddr::new(segment, total - 1 - number);
        let bytes = self.page_on_media(&place, number, addr).await?.freeze();
        self.pages.keep(&place, number, bytes.clone());
        Ok(bytes)
    }

    async fn page_on_media(
        &self,
        place: &FooterPlace,
        number: u32,
        addr: BlockAddr,
    ) -> Result<IoBuf, DeviceError> {
        let read = self.array.read(addr, 1).await.ok();
        match read.filter(|bytes| place.owns(number, bytes)) {
            Some(bytes) => Ok(bytes),
            None => self.repaired_page(place, number, addr).await,
        }
    }

    async fn repaired_page(
        &self,
        place: &FooterPlace,
        number: u32,
        addr: BlockAddr,
    ) -> Result<IoBuf, DeviceError> {
        let versions = self.array.alternatives(addr).await;
        for candidate in versions.map_err(|e| corrupt(place.segment, &e.to_string()))? {
            if place.owns(number, &candidate) {
                self.repaired.set(self.repaired.get() + 1);
                // As above: what was read is right even if the repair fails.
                let _ = self.array.repair(addr, &candidate).await;
                return Ok(candidate);
            }
        }
        let why = format!("page {number} of it is wrong, and no copy or parity repairs it");
        Err(corrupt(place.segment, &why))
    }

    /// The footer of a filled segment, checked and repaired.
    pub async fn footer(&self, segment: SegmentId) -> Result<Footer, DeviceError> {
        let _pin = self.table.pin(segment);
        let (place, total) = self.footer_of(segment)?;
        // The first page says how many there are.
        let last = self.page_on_media(&place, 0, BlockAddr::new(segment, total - 1)).await?;
        let pages = pages_of(&last).ok().filter(|pages| *pages < total);
        let pages = pages.ok_or_else(|| corrupt(segment, "its first page makes no sense"))?;
        let mut bytes = Vec::with_capacity(pages as usize * BLOCK_LEN);
        if pages > 1 {
            let (first, others) = (BlockAddr::new(segment, total - pages), pages - 1);
            let read = self.array.read(first, others).await;
            let read = read.unwrap_or_else(|_| IoBuf::zeroed(others as usize * BLOCK_LEN));
            for (number, page) in (1..pages).rev().zip(read.chunks(BLOCK_LEN)) {
                if place.owns(number, page) {
                    bytes.extend_from_slice(page);
                } else {
                    let addr = BlockAddr::new(segment, total - 1 - number);
                    bytes.extend_from_slice(&self.repaired_page(&place, number, addr).await?);
                }
            }
        }
        bytes.extend_from_slice(&last);
        Footer::decode(&bytes).map_err(|e| corrupt(segment, &e.to_string()))
    }
}

fn corrupt(segment: SegmentId, why: &str) -> DeviceError {
    let detail = format!("footer of segment {segment}: {why}");
    DeviceError::new("pool", Operation::Read, 0, 0, ErrorKind::Corrupt { detail })
}
