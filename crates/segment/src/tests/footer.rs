//! Footers of several pages, the writers of a volume's blocks, and the limit of writes in flight.

use forebay_format::footer::Footer;

use super::*;

/// Fills a segment with blocks at the addresses that `lba` gives. Returns its footer.
pub(super) async fn fill(b: &Bench, lba: impl Fn(u64) -> u64) -> Footer {
    let mut writer =
        DataWriter::new(b.array.clone(), b.table.clone(), b.in_flight.clone(), POOL, 0);
    let mut footer = Footer { pool: POOL, birth: 1, ..Footer::default() };
    for at in 0.. {
        let (lba, data) = (Lba(lba(at)), block(at));
        let put = writer.append(VolumeId(4), lba, bytes(&data), CommitId(1), 9, 0).await.unwrap();
        footer.segment = put.0.segment();
        footer.push(VolumeId(4), lba, put.1);
        if b.table.get(footer.segment).footer {
            break;
        }
    }
    b.in_flight.drain().await.unwrap();
    footer
}

#[test]
fn footers_of_several_pages_are_read_and_repaired() {
    Runtime::simulated(14).block_on(async {
        const COLUMN: u64 = 6 << 20;
        let b = bench_of(Layout::Mirror, 2, COLUMN, 3);
        // Consecutive blocks, then each a run of its own, then runs of any lengths.
        let jumps = |at: u64| at + (at * at / 50) * 1000;
        let patterns: [fn(u64) -> u64; 3] = [|at| at, |at| 3 * at, jumps];
        for (segment, lba_of) in (0..).zip(patterns) {
            let written = fill(&b, lba_of).await;
            let reader = || Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
            let found = reader().footer(SegmentId(segment)).await.unwrap();
            assert_eq!((found.birth, &found.runs), (1, &written.runs));
            assert_eq!(found.sums, written.sums);
            // The last page but one is wrong on one side.
            let page = u64::from(segment + 1) * COLUMN - 2 * BLOCK_LEN as u64;
            let rotten = IoBuf::copy_of(&[0xee; BLOCK_LEN]).freeze();
            b.devices[0].write(page, rotten, false).await.unwrap();
            for _ in 0..2 {
                assert_eq!(reader().footer(SegmentId(segment)).await.unwrap(), found);
            }
            // One reader, so that later reads find the pages of earlier ones.
            let one = reader();
            for at in 0..found.sums.len() as u64 {
                let (addr, lba) = (BlockAddr::new(SegmentId(segment), at as u32), Lba(lba_of(at)));
                let wanted = Wanted { addr, volume: VolumeId(4), lba, blocks: 1, sums: vec![None] };
                assert!(one.read(&wanted).await.unwrap()[..] == block(at)[..], "block {at}");
            }
            // Runs of several blocks, some of which have their sums in two pages.
            let follow = |at: &u64| (1..8).all(|next| lba_of(at + next) == lba_of(*at) + next);
            for at in (0..found.sums.len() as u64 - 7).filter(follow) {
                let (addr, lba) = (BlockAddr::new(SegmentId(segment), at as u32), Lba(lba_of(at)));
                let sums = vec![None; 8];
                let wanted = Wanted { addr, volume: VolumeId(4), lba, blocks: 8, sums };
                let read = one.read(&wanted).await.unwrap();
                let right = read.chunks(BLOCK_LEN).zip(at..).all(|(got, at)| *got == block(at)[..]);
                assert!(right, "blocks from {at} on");
            }
        }
    });
}

#[test]
fn blocks_of_another_volume_fit_only_if_it_is_a_writer() {
    Runtime::simulated(15).block_on(async {
        let b = bench(Layout::Mirror, 2);
        fill(&b, |at| at).await;
        let reader = Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
        let addr = BlockAddr::new(SegmentId(0), 5);
        let wanted = Wanted { addr, volume: VolumeId(7), lba: Lba(5), blocks: 1, sums: vec![None] };
        for (writers, fits) in [(&[][..], false), (&[VolumeId(4)], true), (&[], false)] {
            reader.set_writers(VolumeId(7), writers);
            assert_eq!(reader.read(&wanted).await.is_ok(), fits);
            assert_eq!(reader.bindings().allow(VolumeId(7), VolumeId(4)), fits);
        }
    });
}

#[test]
fn writes_in_flight_keep_their_limit_and_a_longer_one_goes_alone() {
    Runtime::simulated(16).block_on(async {
        // A batch is 16 rows of two units.
        const BATCH_BYTES: u64 = 16 * 2 * (16 << 10);
        for (limit, peak) in [(1, 1), (2 * BATCH_BYTES, 2), (64 << 20, 8)] {
            let mut b = bench_of(Layout::Raid0, 2, 2 << 20, 2);
            b.in_flight = InFlight::new(limit);
            assert_eq!(b.in_flight.take_peak_bytes(), 0);
            fill(&b, |at| at).await;
            assert_eq!(b.in_flight.take_peak_bytes(), peak * BATCH_BYTES, "limit {limit}");
            assert_eq!(b.in_flight.take_peak_bytes(), 0);
        }
    });
}

#[test]
fn a_footer_that_is_shorter_than_its_bound_ends_its_segment() {
    Runtime::simulated(17).block_on(async {
        let mut shorter = 0;
        for column_blocks in (796..=832).step_by(4) {
            let b = bench_of(Layout::Mirror, 2, column_blocks * BLOCK_LEN as u64, 3);
            let runs_of_four = |at: u64| at + at / 4 * 1000;
            let patterns: [fn(u64) -> u64; 3] = [|at| at, |at| 3 * at, runs_of_four];
            for (segment, lba_of) in (0..).zip(patterns) {
                let written = fill(&b, lba_of).await;
                let reader = Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
                let found = reader.footer(SegmentId(segment)).await.unwrap();
                assert_eq!(found.sums, written.sums);
                let footer_blocks = found.encode().len() / BLOCK_LEN;
                let taken = (found.sums.len() + footer_blocks) as u64;
                shorter += u32::from(taken < column_blocks);
            }
        }
        assert!(shorter > 0, "no footer was shorter than its bound");
    });
}

#[test]
fn a_wait_for_writes_lasts_while_none_is_under_way() {
    Runtime::simulated(21).block_on(async {
        let b = bench(Layout::Mirror, 2);
        let busy = || rt::timeout(Nanos::from_secs(1), Box::pin(b.in_flight.until_busy()));
        assert!(busy().await.is_err());
        fill(&b, |at| at).await;
        assert!(busy().await.is_err());
    });
}

#[test]
fn every_block_of_a_segment_is_counted_and_only_long_runs_are_named() {
    Runtime::simulated(22).block_on(async {
        let b = bench(Layout::Mirror, 2);
        let (array, table) = (b.array.clone(), b.table.clone());
        let mut writer = DataWriter::new(array, table, b.in_flight.clone(), POOL, 0);
        // Long runs, each before a short one; some rows are not full.
        let lbas: Vec<u64> =
            (0..1000).map(|at| at % 36 + at / 36 * 1000 + at % 36 / 33 * 50).collect();
        let mut left = 0;
        for (at, lba) in lbas.into_iter().enumerate() {
            let data = bytes(&block(at as u64));
            writer.append(VolumeId(4), Lba(lba), data, CommitId(1), 9, 0).await.unwrap();
            if at % 70 == 69 {
                left += u64::from(writer.blocks_to_row_end());
                writer.finish_rows(CommitId(1)).await;
                assert_eq!(writer.blocks_to_row_end(), 0);
            }
        }
        writer.finish_rows(CommitId(1)).await;
        b.in_flight.drain().await.unwrap();
        let WriteCounts { data, footer, padding, .. } = writer.counts();
        assert_eq!(data, 1000);
        assert!(
            left > 0 && padding >= left,
            "{padding} blocks of padding, {left} of them asked for"
        );
        let mut written = 0;
        b.table.for_each(|_, info| written += u64::from(info.rows) * 4);
        assert_eq!(data + footer + padding, written);
        let runs = writer.take_long_runs();
        assert!(runs.iter().all(|run| run.volume == VolumeId(4) && run.blocks >= 32), "{runs:?}");
        assert!(runs.len() >= 5, "{runs:?}");
    });
}

// Blocks that are alike lie at one address, so a short piece may lie within a long one.
#[test]
fn a_read_of_several_pieces_ends_with_the_one_that_ends_last() {
    Runtime::simulated(15).block_on(async {
        let b = bench(Layout::Raid0, 1);
        let volume = VolumeId(4);
        let mut writer =
            DataWriter::new(b.array.clone(), b.table.clone(), b.in_flight.clone(), POOL, 0);
        let mut places = Vec::new();
        for at in 0..20 {
            let data = bytes(&block(at));
            places.push(writer.append(volume, Lba(at), data, CommitId(1), 9, 0).await.unwrap());
        }
        writer.finish_rows(CommitId(1)).await;
        b.in_flight.drain().await.unwrap();
        let wanted = |first: usize, blocks: usize| Wanted {
            addr: places[first].0,
            volume,
            lba: Lba(first as u64),
            blocks: blocks as u32,
            sums: places[first..first + blocks].iter().map(|place| Some(place.1)).collect(),
        };
        let reader = Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
        let pieces = [wanted(2, 10), wanted(4, 3)];
        let together = reader.read_together(&pieces.iter().collect::<Vec<_>>()).await;
        for (got, piece) in together.pieces().zip(&pieces) {
            let all = piece.lba.0..piece.lba.0 + u64::from(piece.blocks);
            assert!(got.unwrap() == &all.flat_map(block).collect::<Vec<u8>>()[..]);
        }
    });
}
