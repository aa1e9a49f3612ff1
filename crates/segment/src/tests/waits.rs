//! What holds while a device is waited for: pins of reads, and failures of writes.

use std::cell::Cell;

use forebay_device::ErrorKind;

use super::*;

// Pages that are found in a segment of another use would be called damaged.
#[test]
fn a_segment_is_not_reused_while_its_footer_is_read() {
    Runtime::simulated(31).block_on(async {
        let pinned = Rc::new(Pinned { table: OnceCell::new(), seen: RefCell::default() });
        let probed = |device| -> Device { Probe::new(device, pinned.clone()) };
        let b = bench_on(Layout::Mirror, 2, (6 << 20, 3), probed);
        let footer = footer::fill(&b, |at| 3 * at).await;
        assert!(pinned.table.set(b.table.clone()).is_ok());
        let reader = Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
        assert_eq!(reader.footer(SegmentId(0)).await.unwrap().sums, footer.sums);
        let seen = pinned.seen.take();
        assert!(seen.len() >= 2 && seen.iter().all(|pins| *pins == 1), "{seen:?}");
        assert_eq!(b.table.get(SegmentId(0)).pins, 0);
    });
}

/// Writes that take a second, and fail when told to.
#[derive(Default)]
struct Slow {
    fails: Cell<bool>,
}

impl Script for Slow {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            if command.operation != Operation::Write {
                return Decision::Run;
            }
            rt::sleep(Nanos::from_secs(1)).await;
            match self.fails.get() {
                true => Decision::Fail(ErrorKind::Os { errno: 5 }),
                false => Decision::Run,
            }
        })
    }
}

// A root that is written after such a wait would name blocks that are nowhere.
#[test]
fn a_wait_for_writes_tells_of_those_that_fail_during_the_wait() {
    Runtime::simulated(32).block_on(async {
        let slow = Rc::new(Slow::default());
        let probed = |device| -> Device { Probe::new(device, slow.clone()) };
        let b = bench_on(Layout::Raid0, 1, (256 << 10, SEGMENTS), probed);
        let mut writer =
            DataWriter::new(b.array.clone(), b.table.clone(), b.in_flight.clone(), POOL, 0);
        for fails in [false, true] {
            slow.fails.set(fails);
            let data = bytes(&block(7));
            writer.append(VolumeId(4), Lba(7), data, CommitId(1), 9, 0).await.unwrap();
            writer.finish_rows(CommitId(1)).await;
            assert_eq!(b.in_flight.drain().await.is_err(), fails);
            // It is told of once.
            b.in_flight.drain().await.unwrap();
        }
    });
}

#[test]
fn wait_for_a_write_ends_when_the_first_begins() {
    Runtime::simulated(33).block_on(async {
        let slow = Rc::new(Slow::default());
        let probed = |device| -> Device { Probe::new(device, slow.clone()) };
        let b = bench_on(Layout::Raid0, 1, (256 << 10, SEGMENTS), probed);
        let mut writer =
            DataWriter::new(b.array.clone(), b.table.clone(), b.in_flight.clone(), POOL, 0);
        for _ in 0..2 {
            let in_flight = b.in_flight.clone();
            let waiting = rt::spawn(async move { in_flight.until_busy().await });
            rt::sleep(Nanos::from_secs(1)).await;
            assert!(!waiting.is_finished());
            let data = bytes(&block(7));
            writer.append(VolumeId(4), Lba(7), data, CommitId(1), 9, 0).await.unwrap();
            writer.finish_rows(CommitId(1)).await;
            rt::sleep(Nanos::from_millis(500)).await;
            assert!(waiting.is_finished() && !b.in_flight.is_empty());
            b.in_flight.drain().await.unwrap();
        }
    });
}
