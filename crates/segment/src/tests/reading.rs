//! What the reader asks devices for, and what it tells when they cannot answer.

use std::cell::Cell;

use forebay_device::ErrorKind;

use super::*;
use crate::Unread;

const VOLUME: VolumeId = VolumeId(4);
/// The first block of the volume that is written.
const FIRST: u64 = 100;
/// Blocks of a segment with a footer of several pages.
const MANY: u64 = 1536;

/// Notes the reads of a device: first block and blocks. Some fail.
struct Reads {
    seen: RefCell<Vec<(u64, u64)>>,
    bad_block: Cell<Option<u64>>,
    most_blocks: Cell<u64>,
}

impl Script for Reads {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let len = BLOCK_LEN as u64;
        let (first, blocks) = (command.offset_bytes / len, command.len_bytes / len);
        let mut fails = false;
        if command.operation == Operation::Read {
            self.seen.borrow_mut().push((first, blocks));
            let is_bad = |bad| (first..first + blocks).contains(&bad);
            fails = blocks > self.most_blocks.get() || self.bad_block.get().is_some_and(is_bad);
        }
        Box::pin(async move {
            match fails {
                true => Decision::Fail(ErrorKind::Os { errno: 5 }),
                false => Decision::Run,
            }
        })
    }
}

struct Rig {
    b: Bench,
    reads: Rc<Reads>,
    reader: Rc<Reader>,
    sums: Vec<u64>,
}

/// One device with a segment of `blocks` blocks, full of single blocks of [`VOLUME`].
async fn rig(blocks: u64) -> Rig {
    let (seen, bad_block) = (RefCell::default(), Cell::default());
    let reads = Rc::new(Reads { seen, bad_block, most_blocks: Cell::new(u64::MAX) });
    let probed = |device| -> Device { Probe::new(device, reads.clone()) };
    let b = bench_on(Layout::Raid0, 1, (blocks * BLOCK_LEN as u64, 1), probed);
    let sums = footer::fill(&b, |at| FIRST + at).await.sums;
    let reader = Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
    Rig { b, reads, reader, sums }
}

impl Rig {
    fn wanted(&self, first: u32, blocks: u32, known: bool) -> Wanted {
        let sum = |block: u32| known.then(|| self.sums[block as usize]);
        let (addr, lba) = (BlockAddr::new(SegmentId(0), first), Lba(FIRST + u64::from(first)));
        let sums = (first..first + blocks).map(sum).collect();
        Wanted { addr, volume: VOLUME, lba, blocks, sums }
    }

    async fn read(&self, wanted: &Wanted) -> Result<(), Unread> {
        let first = u64::from(wanted.addr.block());
        let right: Vec<u8> = (first..first + u64::from(wanted.blocks)).flat_map(block).collect();
        self.reader.read_each(wanted).await.map(|read| assert!(read[..] == right[..]))
    }
}

#[test]
fn what_is_right_is_read_once_and_never_repaired() {
    Runtime::simulated(51).block_on(async {
        let rig = rig(MANY).await;
        rig.read(&rig.wanted(2, 10, true)).await.unwrap();
        assert_eq!(rig.reads.seen.take(), [(2, 10)]);
        // Sums of the first page reach up to block 807. Pages are counted from the end.
        let across = rig.wanted(800, 20, false);
        rig.read(&across).await.unwrap();
        let mut seen = rig.reads.seen.take();
        seen.sort_unstable();
        assert_eq!(seen, [(800, 20), (MANY - 2, 1), (MANY - 1, 1)]);
        rig.read(&across).await.unwrap();
        assert_eq!(rig.reads.seen.take(), [(800, 20)], "its pages are in memory");
        let pages = rig.reader.pages_bytes();
        assert_eq!(pages, 2 * BLOCK_LEN as u64);
        let footer = rig.reader.footer(SegmentId(0)).await.unwrap();
        let others = (footer.encode().len() / BLOCK_LEN) as u64 - 1;
        assert_eq!(rig.reads.seen.take(), [(MANY - 1, 1), (MANY - 1 - others, others)]);
        assert_eq!(repairs(&rig.b.array), 0);
    });
}

#[test]
fn pieces_are_read_with_one_command_of_just_their_length() {
    Runtime::simulated(52).block_on(async {
        let rig = rig(64).await;
        for firsts in [&[(40, 5), (50, 1)][..], &[(40, 1), (41, 2), (43, 3)], &[(7, 3)]] {
            let wanted: Vec<Wanted> =
                firsts.iter().map(|(first, blocks)| rig.wanted(*first, *blocks, true)).collect();
            let together = rig.reader.read_together(&wanted.iter().collect::<Vec<_>>()).await;
            assert_eq!(together.pieces().count(), wanted.len());
            for (got, (first, blocks)) in together.pieces().zip(firsts) {
                let right = (*first..first + blocks).flat_map(|at| block(u64::from(at)));
                assert!(got.unwrap() == right.collect::<Vec<u8>>());
            }
            let ((from, _), (last, blocks)) = (firsts[0], firsts[firsts.len() - 1]);
            let all = (u64::from(from), u64::from(last + blocks - from));
            assert_eq!(rig.reads.seen.take(), [all]);
        }
    });
}

#[test]
fn a_long_read_that_fails_is_made_up_block_by_block() {
    Runtime::simulated(53).block_on(async {
        let rig = rig(MANY).await;
        let footer = rig.reader.footer(SegmentId(0)).await.unwrap();
        rig.reads.most_blocks.set(1);
        rig.read(&rig.wanted(5, 20, true)).await.unwrap();
        rig.read(&rig.wanted(5, 20, false)).await.unwrap();
        assert_eq!(rig.reader.footer(SegmentId(0)).await.unwrap(), footer);
        // A bad sector costs its block alone.
        rig.reads.bad_block.set(Some(9));
        let unread = rig.read(&rig.wanted(5, 20, true)).await.unwrap_err();
        assert_eq!(unread.blocks, [4]);
        let SegmentError::Block { volume, lba, addr, fault } = unread.error else {
            panic!("{}", unread.error)
        };
        let at = (VOLUME, Lba(FIRST + 9), BlockAddr::new(SegmentId(0), 9));
        assert_eq!((volume, lba, addr), at);
        assert!(matches!(fault, BlockFault::Unreadable(_)), "{fault}");
        // Of many bad blocks the first 64 are named.
        rig.reads.bad_block.set(None);
        let rotten = IoBuf::copy_of(&vec![0xee; 100 * BLOCK_LEN]).freeze();
        rig.b.devices[0].write(200 * BLOCK_LEN as u64, rotten, false).await.unwrap();
        let unread = rig.read(&rig.wanted(198, 110, true)).await.unwrap_err();
        assert_eq!(unread.blocks, (2..66).collect::<Vec<u32>>());
        assert!(is_checksum_fault(&unread.error));
    });
}

#[test]
fn a_block_behind_the_page_with_its_sum_is_no_block_of_a_volume() {
    Runtime::simulated(54).block_on(async {
        // The page with its sum is the last block, or the last but one.
        for (blocks, near, behind) in [(64, 5, [63, 63]), (MANY, 900, [1534, 1535])] {
            let rig = rig(blocks).await;
            let past = |outcome: Result<(), Unread>, bad: &[u32]| {
                let unread = outcome.unwrap_err();
                assert_eq!(unread.blocks, bad);
                let SegmentError::Block { fault, .. } = unread.error else { panic!() };
                assert_eq!(fault, BlockFault::PastFooter);
            };
            // At first no page is in memory.
            for _ in 0..2 {
                for block in behind {
                    past(rig.read(&rig.wanted(block, 1, false)).await, &[0]);
                }
                rig.read(&rig.wanted(near, 1, false)).await.unwrap();
            }
        }
    });
}

/// Repairs by a read of the first block in a group of three parities. That block is wrong, so are
/// those of `others` in its row, and that of a device whose replacement has the right one.
async fn repairs_with(others: &[usize]) -> usize {
    let b = bench(Layout::Raidz3, 24);
    let footer = footer::fill(&b, |at| at).await;
    let right = b.devices[5].read(0, IoBuf::zeroed(BLOCK_LEN)).await.unwrap().freeze();
    let other: Device = Rc::new(MemoryDevice::new("other", u64::from(SEGMENTS) * (256 << 10)));
    other.write(0, right, false).await.unwrap();
    b.array.replace(DeviceId(5), DeviceId(99), other).unwrap();
    let reader = Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
    let sums = vec![Some(footer.sums[0])];
    let addr = BlockAddr::new(SegmentId(0), 0);
    let wanted = Wanted { addr, volume: VOLUME, lba: Lba(0), blocks: 1, sums };
    for device in [&[0, 5], others].concat() {
        let rotten = IoBuf::copy_of(&[0xee; BLOCK_LEN]).freeze();
        b.devices[device].write(0, rotten, false).await.unwrap();
    }
    assert!(reader.read(&wanted).await.unwrap()[..] == block(0)[..]);
    repairs(&b.array)
}

// Of many versions a wrong one may fit the short checksum, and would be there for good.
#[test]
fn a_block_that_was_found_among_many_versions_is_not_written_back() {
    Runtime::simulated(55).block_on(async {
        assert!(repairs_with(&[]).await > 0);
        assert_eq!(repairs_with(&[19, 20]).await, 0);
    });
}
