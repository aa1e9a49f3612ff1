//! Verified reads: every block is checked against its sum, and repaired from redundancy if needed.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use forebay_array::Array;
use forebay_device::{IoBuf, IoBytes};
use forebay_format::footer::{Footer, FooterPlace, pages_of, sum_in_page};
use forebay_rt as rt;
use forebay_units::{BLOCK_LEN, BlockAddr, Lba, SegmentId, VolumeId};

use crate::error::{BlockFault, FooterFault, SegmentError};
use crate::pages::Pages;
use crate::{Bindings, SegmentTable};

/// Blocks to read: consecutive on media and in the volume.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Address of the first block.
    pub addr: BlockAddr,
    /// The volume that has them. Their checksums bind it, or a volume whose blocks it may have.
    pub volume: VolumeId,
    /// First block in the volume.
    pub lba: Lba,
    /// Number of blocks.
    pub blocks: u32,
    /// Their checksums, block by block; `None` when the sum is in the segment's footer.
    pub sums: Vec<Option<u64>>,
}

/// A read that failed.
#[derive(Clone, Debug)]
pub struct Unread {
    /// The error of the first unreadable block.
    pub error: SegmentError,
    /// Unreadable blocks, counted from the first block wanted. Incomplete when there are many.
    pub blocks: Vec<u32>,
}

/// Bad blocks after which a read stops, because each may cost many reads.
const MAX_BAD_BLOCKS: usize = 64;

/// The result of a read of several pieces of one segment.
pub struct Together {
    span: IoBuf,
    pieces: Vec<WantedBytes>,
}

/// Where the bytes of one piece are.
enum WantedBytes {
    /// In the common read.
    InSpan(Range<usize>),
    /// In a read of their own.
    Separate(Result<IoBuf, Unread>),
}

impl Together {
    /// The pieces in the order of the request.
    pub fn pieces(&self) -> impl Iterator<Item = Result<&[u8], &Unread>> {
        self.pieces.iter().map(|piece| match piece {
            WantedBytes::InSpan(range) => Ok(&self.span[range.clone()]),
            WantedBytes::Separate(outcome) => outcome.as_deref(),
        })
    }
}

/// The reader of one pool.
pub struct Reader {
    array: Rc<Array>,
    table: Rc<SegmentTable>,
    pool: u64,
    pages: Pages,
    bindings: RefCell<Bindings>,
}

impl Reader {
    /// A reader of pool `pool` that caches footer pages in at most `pages_bytes` of memory. A page
    /// of 4 KiB has the sums of 3 MiB of data.
    #[must_use]
    pub fn new(array: Rc<Array>, table: Rc<SegmentTable>, pool: u64, pages_bytes: u64) -> Rc<Self> {
        let (pages, bindings) = (Pages::new(pages_bytes), RefCell::default());
        Rc::new(Self { array, table, pool, pages, bindings })
    }

    /// Sets which other volumes may have written blocks that `volume` has.
    pub fn set_writers(&self, volume: VolumeId, writers: &[VolumeId]) {
        self.bindings.borrow_mut().set(volume, writers);
    }

    /// Whose blocks each volume may have.
    #[must_use]
    pub fn bindings(&self) -> Bindings {
        self.bindings.borrow().clone()
    }

    /// Whether `block` is what `volume` has at `lba` with the checksum `sum`.
    #[must_use]
    pub fn fits(&self, at: (VolumeId, Lba), block: &[u8], sum: u64) -> bool {
        self.bindings.borrow().fit(self.pool, at, block, sum)
    }

    /// Memory of the cached footer pages, in bytes.
    #[must_use]
    pub fn pages_bytes(&self) -> u64 {
        self.pages.bytes()
    }

    /// Reads and verifies blocks, and repairs wrong blocks where possible.
    pub async fn read(&self, wanted: &Wanted) -> Result<IoBuf, SegmentError> {
        self.read_each(wanted).await.map_err(|unread| unread.error)
    }

    /// As [`Reader::read`]; the error names the unreadable blocks.
    pub async fn read_each(&self, wanted: &Wanted) -> Result<IoBuf, Unread> {
        let pin = self.table.pin(wanted.addr.segment());
        let data = self.array.read(wanted.addr, wanted.blocks);
        let mut bad = Vec::new();
        let mut first_error = None;
        // Sums that are not in memory are read in parallel with the data.
        let (outcome, missing) = if wanted.sums.iter().all(Option::is_some) {
            (data.await, Vec::new())
        } else if let Some(missing) = self.cached_sums(wanted) {
            (data.await, missing)
        } else {
            rt::join(data, self.missing_sums(wanted)).await
        };
        // After a failed read, every block is recovered from its alternatives.
        let mut buf = outcome.unwrap_or_else(|_| IoBuf::zeroed(wanted.blocks as usize * BLOCK_LEN));
        for index in 0..wanted.blocks as usize {
            let lba = Lba(wanted.lba.0 + index as u64);
            let block = &mut buf[index * BLOCK_LEN..(index + 1) * BLOCK_LEN];
            let sum = wanted.sums[index].map_or_else(|| missing[index].clone(), Ok);
            let outcome = match sum {
                Ok(sum) if self.fits((wanted.volume, lba), block, sum) => continue,
                Ok(sum) => {
                    self.recover(wanted, index, sum).await.map(|g| block.copy_from_slice(&g))
                }
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                first_error.get_or_insert(error);
                bad.push(index as u32);
                if bad.len() >= MAX_BAD_BLOCKS {
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

    /// Reads pieces of one segment, in the order of their first addresses, with one read that
    /// includes the gaps. A piece that is wrong there is read by itself, as by
    /// [`Reader::read_each`].
    pub async fn read_together(&self, wanted: &[&Wanted]) -> Together {
        let first = wanted[0];
        if wanted.len() == 1 {
            let piece = WantedBytes::Separate(self.read_each(first).await);
            return Together { span: IoBuf::recycled(0), pieces: vec![piece] };
        }
        // The pin keeps the old copies of moved blocks until the last piece is read.
        let pin = self.table.pin(first.addr.segment());
        let from = first.addr.block();
        // Pieces may overlap: blocks that are alike can be at one address.
        let ends = wanted.iter().map(|piece| piece.addr.block() + piece.blocks);
        let blocks = ends.max().expect("at least one is wanted") - from;
        // Most pieces need the same footer page. One after the other, they read it once.
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
                    sum.is_ok_and(|sum| self.fits((wanted.volume, Lba(lba)), block, sum))
                })
            });
            pieces.push(match right {
                true => WantedBytes::InSpan(range),
                false => WantedBytes::Separate(self.read_each(wanted).await),
            });
        }
        drop(pin);
        Together { span: span.unwrap_or_else(|| IoBuf::recycled(0)), pieces }
    }

    async fn recover(
        &self,
        wanted: &Wanted,
        index: usize,
        sum: u64,
    ) -> Result<IoBuf, SegmentError> {
        let addr = wanted.addr.plus(index as u32);
        let lba = Lba(wanted.lba.0 + index as u64);
        let versions = self.array.alternatives(addr).await;
        let mut versions =
            versions.map_err(|e| block_error(wanted, index, BlockFault::Unreadable(e)))?;
        let fits = |version: &IoBuf| self.fits((wanted.volume, lba), version, sum);
        let Some(right) = versions.find(fits) else {
            return Err(block_error(wanted, index, BlockFault::Checksum));
        };
        if versions.may_be_written_back() {
            // The data are right even if the repair fails.
            let _ = self.array.repair(addr, &right).await;
        }
        Ok(right)
    }

    /// The footer's sums of all blocks of `wanted`, when one cached page has them.
    fn cached_sums(&self, wanted: &Wanted) -> Option<Vec<Result<u64, SegmentError>>> {
        let (first, end) = (wanted.addr.block(), wanted.addr.block() + wanted.blocks);
        let (place, total) = self.footer_of(wanted.addr.segment()).ok()?;
        let number = FooterPlace::page_of(first);
        if end + number >= total || FooterPlace::page_of(end - 1) != number {
            return None;
        }
        let page = self.pages.get(&place, number)?;
        Some((first..end).map(|block| Ok(sum_in_page(&page, block))).collect())
    }

    /// The sums of the blocks of `wanted`, from the footer where `wanted` does not have them.
    async fn missing_sums(&self, wanted: &Wanted) -> Vec<Result<u64, SegmentError>> {
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
                // The block would be after the footer page with its sum.
                (None, Ok(total)) if block + 1 + FooterPlace::page_of(block) >= *total => {
                    Err(block_error(wanted, index, BlockFault::PastFooter))
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

    /// The identity of a segment's footer, and the number of blocks of the segment.
    fn footer_of(&self, segment: SegmentId) -> Result<(FooterPlace, u32), SegmentError> {
        let geometry = self.array.geometry_of(segment);
        let geometry = geometry.map_err(|e| footer_error(segment, FooterFault::Unreadable(e)))?;
        let total = geometry.blocks_per_segment();
        let birth = self.table.get(segment).birth;
        Ok((FooterPlace { pool: self.pool, segment, birth }, total))
    }

    /// One page of a full segment's footer, from the cache or from media, verified and repaired.
    async fn page(&self, segment: SegmentId, number: u32) -> Result<IoBytes, SegmentError> {
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
    ) -> Result<IoBuf, SegmentError> {
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
    ) -> Result<IoBuf, SegmentError> {
        let versions = self.array.alternatives(addr).await;
        let versions =
            versions.map_err(|e| footer_error(place.segment, FooterFault::Unreadable(e)))?;
        for candidate in versions {
            if place.owns(number, &candidate) {
                // The page is right even if the repair fails.
                let _ = self.array.repair(addr, &candidate).await;
                return Ok(candidate);
            }
        }
        Err(footer_error(place.segment, FooterFault::Page { page: number }))
    }

    /// The footer of a full segment, verified and repaired.
    pub async fn footer(&self, segment: SegmentId) -> Result<Footer, SegmentError> {
        let _pin = self.table.pin(segment);
        let (place, total) = self.footer_of(segment)?;
        // The first page has the number of pages.
        let last = self.page_on_media(&place, 0, BlockAddr::new(segment, total - 1)).await?;
        let pages = pages_of(&last).ok().filter(|pages| *pages < total);
        let pages = pages.ok_or_else(|| footer_error(segment, FooterFault::PageCount))?;
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
        Footer::decode(&bytes).map_err(|e| footer_error(segment, FooterFault::Format(e)))
    }
}

fn block_error(wanted: &Wanted, index: usize, fault: BlockFault) -> SegmentError {
    let (volume, lba) = (wanted.volume, Lba(wanted.lba.0 + index as u64));
    SegmentError::Block { volume, lba, addr: wanted.addr.plus(index as u32), fault }
}

fn footer_error(segment: SegmentId, fault: FooterFault) -> SegmentError {
    SegmentError::Footer { segment, fault }
}
