//! The journal on a device that a resilver has filled.

use forebay_device::BlockDevice;
use forebay_units::BlockAddr;

use super::*;

// Without redundancy a block of the journal has one other place to be read from.
#[test]
fn a_device_that_replaces_another_has_the_copies_of_the_journal() {
    Runtime::simulated(9).block_on(async {
        let b = bench(Layout::Raid0, 1);
        let table = SegmentTable::new();
        let blocks = b.array.geometry_of(SegmentId(0)).unwrap().blocks_per_segment();
        table.add_group(SEGMENTS, blocks);
        let in_flight = InFlight::new(8 << 20);
        let (array, of_journal) = (b.array.clone(), table.clone());
        let mut journal = JournalWriter::new(array, of_journal, in_flight.clone(), POOL);
        let start = journal.open(CommitId(1)).unwrap();
        journal.append(FrameKind::Delta, &[7; 9000], CommitId(1)).await.unwrap();
        journal.finish_rows(CommitId(1)).await.unwrap();
        in_flight.drain().await.unwrap();
        b.array.flush().await.unwrap();
        let end = journal.position().unwrap();
        let other = Rc::new(MemoryDevice::new("other", COLUMN * u64::from(SEGMENTS)));
        b.array.replace(DeviceId(0), DeviceId(7), other.clone()).unwrap();
        resilver(&b.array, &table, start.addr.segment()).await;
        assert_eq!(b.array.replaced(), [DeviceId(0)]);
        b.array.detach(DeviceId(0)).unwrap();
        let bad_block = IoBuf::copy_of(&[0xee; BLOCK_LEN]).freeze();
        let at = u64::from(start.addr.block()) * BLOCK_LEN as u64;
        other.write(at, bad_block, false).await.unwrap();
        let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
        let frame = reader.next().await.unwrap().expect("the frame");
        assert!(frame.payload() == [7; 9000]);
    });
}

/// Rebuilds as many rows of segment `live` as the table says that were written.
async fn resilver(array: &Rc<Array>, table: &SegmentTable, live: SegmentId) {
    let judge = |_: BlockAddr, _: &[u8]| BlockVerdict::Dead;
    for segment in array.stale_segments() {
        if segment != live {
            array.reset_segment(segment).unwrap();
            continue;
        }
        let mut rebuilding = array.begin_rebuild(segment, table.get(segment).rows).unwrap();
        while array.rebuild_more(&mut rebuilding, &judge).await.unwrap() {}
        let _ = rebuilding.end();
    }
    array.flush().await.unwrap();
}
