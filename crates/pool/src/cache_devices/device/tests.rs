//! A cache device by itself: what it finds, how its reads are judged, and what is shown of it.

use forebay_device::Operation;
use forebay_format::cache_device::CacheHeader;
use forebay_rt::Runtime;

use super::*;
use crate::cache_devices::tests::{ADDED_AT, Behavior, SIZE_BYTES, block, config, online, put};

fn is_found(device: &CacheDevice, number: u32) -> bool {
    device.find(block(number).key, None).is_some()
}

async fn reads(device: &CacheDevice, position: u32, blocks: u32) -> Result<bool, CacheFault> {
    device.read(position, blocks).await.map(|data| data.is_some())
}

#[test]
fn status_says_why_a_cache_device_is_not_in_use() {
    Runtime::simulated(4301).block_on(async {
        let error = |kind| DeviceError::new("k", Operation::Read, 0, 4096, kind);
        let os = |errno| error(ErrorKind::Os { errno });
        let name = || "other".to_owned();
        let flaw = CacheHeader::decode(&[0; BLOCK_LEN]).unwrap_err();
        for (fault, note) in [
            (CacheFault::NoHeader(flaw), VdevNote::NoLabel),
            (CacheFault::OtherPool { name: name() }, VdevNote::OtherPool { name: name() }),
            (CacheFault::ManyBadReads { count: 64 }, VdevNote::TooManyErrors),
            (CacheFault::Open(os(ENOENT)), VdevNote::Missing),
            (CacheFault::Open(os(EACCES)), VdevNote::NoPermission),
            (CacheFault::Open(error(ErrorKind::Busy)), VdevNote::InUse),
            (CacheFault::Failed(error(ErrorKind::TimedOut { after_secs: 5 })), VdevNote::NoAnswer),
            (CacheFault::Failed(os(5)), VdevNote::NotOpened { error: os(5).to_string() }),
        ] {
            let device = online(Rc::default()).await;
            *device.why.borrow_mut() = Some(fault);
            for (state, is_out) in [
                (CacheState::Waiting, true),
                (CacheState::Loading, false),
                (CacheState::Online, false),
                (CacheState::Offline, false),
                (CacheState::Faulted, true),
            ] {
                device.state.set(state);
                assert_eq!(device.note(), is_out.then(|| note.clone()), "{state:?}");
            }
        }
    });
}

#[test]
fn an_entry_with_another_checksum_is_forgotten_unread() {
    Runtime::simulated(4302).block_on(async {
        let device = online(Rc::default()).await;
        put(&device, 4);
        let key = block(4).key;
        assert_eq!(device.find(key, Some(104)), Some((4, 104)));
        assert_eq!(device.find(key, None), Some((4, 104)));
        assert_eq!(device.find(key, Some(105)), None);
        assert_eq!(device.find(key, None), None);
        assert_eq!(device.used_blocks().0, 0);
    });
}

#[test]
fn a_slow_device_is_left_alone_for_longer_each_time_until_it_answers() {
    Runtime::simulated(4303).block_on(async {
        let behavior = Rc::<Behavior>::default();
        let device = online(behavior.clone()).await;
        put(&device, 0);
        behavior.reads_take.set(Nanos::from_secs(1));
        for pause_ms in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            assert!(is_found(&device, 0));
            let begun = rt::now();
            assert_eq!(reads(&device, 0, 1).await, Ok(false));
            assert_eq!(rt::now().since(begun), Nanos::from_millis(50));
            assert!(!is_found(&device, 0));
            rt::sleep(Nanos::from_millis(pause_ms - 1)).await;
            assert!(!is_found(&device, 0), "{pause_ms} ms");
            rt::sleep(Nanos::from_millis(1)).await;
        }
        assert_eq!(device.stats(&config(), ADDED_AT).slow_reads, 9);
        assert!(is_found(&device, 0));
        behavior.reads_take.set(Nanos::ZERO);
        assert_eq!(reads(&device, 0, 1).await, Ok(true));
        behavior.reads_take.set(Nanos::from_secs(1));
        assert_eq!(reads(&device, 0, 1).await, Ok(false));
        rt::sleep(Nanos::from_millis(100)).await;
        assert!(is_found(&device, 0), "it had answered");
    });
}

#[test]
fn places_that_cannot_be_read_are_forgotten_and_others_are_not() {
    Runtime::simulated(4304).block_on(async {
        let behavior = Rc::<Behavior>::default();
        let device = online(behavior.clone()).await;
        (0..6).for_each(|position| put(&device, position));
        *behavior.failure.borrow_mut() = Some(ErrorKind::Os { errno: 5 });
        assert_eq!(reads(&device, 2, 2).await, Ok(false));
        let found: Vec<u32> = (0..6).filter(|number| is_found(&device, *number)).collect();
        assert_eq!(found, [0, 1, 4, 5]);
        assert_eq!(device.errors(), (1, 0, 0));
        for kind in [ErrorKind::Gone, ErrorKind::TimedOut { after_secs: 5 }] {
            *behavior.failure.borrow_mut() = Some(kind.clone());
            let fault = reads(&device, 0, 1).await.unwrap_err();
            assert!(matches!(fault, CacheFault::Failed(error) if error.kind == kind));
        }
        *behavior.failure.borrow_mut() = None;
        assert_eq!(reads(&device, 4, 2).await, Ok(true));
    });
}

#[test]
fn a_wrong_block_counts_if_nothing_was_written_over_it_meanwhile() {
    Runtime::simulated(4305).block_on(async {
        let device = online(Rc::default()).await;
        put(&device, 7);
        device.note_wrong(7, 106).unwrap();
        device.note_wrong(8, 108).unwrap();
        assert!(is_found(&device, 7) && device.errors() == (0, 0, 0));
        device.note_wrong(7, 107).unwrap();
        assert!(!is_found(&device, 7) && device.errors() == (0, 0, 1));
        device.note_wrong(7, 107).unwrap();
        assert_eq!(device.errors(), (0, 0, 1));
    });
}

#[test]
fn a_device_is_given_up_when_more_than_one_read_in_a_hundred_is_bad() {
    Runtime::simulated(4306).block_on(async {
        let device = online(Rc::default()).await;
        let verdict = |read_errors, wrong, hits| {
            device.counts.set(Counts { read_errors, wrong, hits, ..Counts::default() });
            device.judge_reads()
        };
        let given_up = |count| Err(CacheFault::ManyBadReads { count });
        assert_eq!(verdict(31, 32, 0), Ok(()));
        assert_eq!(verdict(32, 32, 0), given_up(64));
        assert_eq!(verdict(40, 24, 6400), Ok(()));
        assert_eq!(verdict(40, 25, 6400), given_up(65));
        assert_eq!(verdict(500, 500, 99_999), given_up(1000));
        assert_eq!(verdict(500, 500, 100_000), Ok(()));
    });
}

#[test]
fn errors_of_a_device_are_counted_from_when_they_were_cleared() {
    Runtime::simulated(4307).block_on(async {
        let device = online(Rc::default()).await;
        device.count_hits(3);
        device.count(|counts| {
            (counts.read_errors, counts.write_errors, counts.wrong) = (1, 2, 3);
        });
        assert_eq!(device.errors(), (1, 2, 3));
        device.begin_anew(&[]);
        assert_eq!(device.errors(), (0, 0, 0));
        assert_eq!(device.counts.get().hits, 3);
    });
}

#[test]
fn what_lies_in_one_region_is_adjacent_and_what_a_footer_parts_is_not() {
    Runtime::simulated(4308).block_on(async {
        let device = online(Rc::default()).await;
        let region = device.shape().data_blocks();
        for first in 0..3 * region {
            for last in first..3 * region {
                let are_in_one = (0..3).any(|number| {
                    let positions = number * region..(number + 1) * region;
                    positions.contains(&first) && positions.contains(&last)
                });
                assert_eq!(device.are_adjacent(first, last), are_in_one, "{first} {last}");
            }
        }
    });
}

#[test]
fn a_moved_block_is_found_by_its_new_address() {
    Runtime::simulated(4309).block_on(async {
        let device = online(Rc::default()).await;
        put(&device, 9);
        device.rename(block(9).key, block(99).key);
        assert!(is_found(&device, 99) && !is_found(&device, 9));
        // One that the device does not have is not there by its new address either.
        device.rename(block(8).key, block(88).key);
        assert!(!is_found(&device, 88));
    });
}

#[test]
fn figures_of_a_device_say_what_it_has_and_how_much_was_written() {
    const DAY_SECS: u64 = 86_400;
    Runtime::simulated(4310).block_on(async {
        let device = online(Rc::default()).await;
        (0..3).for_each(|position| put(&device, position));
        device.count_hits(5);
        device.count_hits(4);
        device.filling.replace(Filling::from(100, false));
        let stats = device.stats(&config(), ADDED_AT + 10);
        assert_eq!((stats.hits, stats.used_bytes, stats.size_bytes), (9, 3 * 4096, SIZE_BYTES));
        // A hundred regions of 64 KiB.
        assert_eq!(stats.written_bytes, 100 << 16);
        let drive_writes = (100_u64 << 16) as f64 / SIZE_BYTES as f64;
        assert_eq!((stats.drive_writes, stats.drive_writes_per_day), (drive_writes, drive_writes));
        let later = device.stats(&config(), ADDED_AT + 5 * DAY_SECS / 2);
        assert_eq!(later.drive_writes, drive_writes);
        assert_eq!(later.drive_writes_per_day, drive_writes / 2.5);
    });
}
