//! One writer at a time: who becomes it, who is kept out, and what none sees late.

use std::rc::Rc;

use forebay_device::layers::{SingleWriter, WriterOpening};
use forebay_device::{BlockDevice, Device, ErrorKind, IoBuf, IoBytes, MemoryDevice};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_sim::faults::{Hung, Ops};
use forebay_units::Nanos;

fn block(salt: u8) -> IoBytes {
    IoBuf::copy_of(&[salt; 4096]).freeze()
}

fn memory() -> Device {
    Rc::new(MemoryDevice::new("target", 1 << 20))
}

async fn first_byte(device: &WriterOpening) -> u8 {
    device.read(0, IoBuf::zeroed(4096)).await.unwrap()[0]
}

#[test]
fn first_write_takes_over_unless_another_came_between() {
    Runtime::simulated(1).block_on(async {
        let target = SingleWriter::new(memory());
        let (old, looks) = (target.open(), target.open());
        old.write(0, block(1), true).await.unwrap();
        // What an opening from before that write has read may no longer be true.
        let error = looks.write(0, block(9), true).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Overtaken);
        assert_eq!(first_byte(&looks).await, 1);
        // One that was opened later takes over with its first write, and not by reading.
        let stale = target.open();
        assert_eq!(first_byte(&stale).await, 1);
        stale.flush().await.unwrap();
        old.write(0, block(2), true).await.unwrap();
        old.discard(4096, 4096, false).await.unwrap();
        assert!(stale.write(0, block(9), true).await.is_err());
        let new = target.open();
        new.write(0, block(3), true).await.unwrap();
        assert!(old.write(0, block(4), true).await.is_err());
        assert!(old.discard(0, 4096, false).await.is_err());
        assert!(old.write_zeroes(0, 4096, Default::default()).await.is_err());
        assert_eq!(first_byte(&old).await, 3);
        // It stays out, even when the writer after it has gone.
        drop(new);
        assert!(old.write(0, block(4), true).await.is_err());
        assert!(target.open().write(0, block(6), true).await.is_ok());
    });
}

#[test]
fn commands_of_the_writer_before_end_first() {
    Runtime::simulated(1).block_on(async {
        let slow = Hung::new(memory());
        let target = SingleWriter::new(slow.clone());
        let (old, third) = (target.open(), target.open());
        old.write(0, block(1), true).await.unwrap();
        slow.hang(Ops::WRITE);
        let last = rt::spawn(async move { old.write(0, block(2), true).await.is_ok() });
        rt::sleep(Nanos::from_secs(1)).await;
        // It reads nothing before that write has ended, and so it may write after it.
        let new = target.open();
        let reads = rt::spawn(async move {
            let seen = first_byte(&new).await;
            (seen, new.write(0, block(3), true).await.is_ok())
        });
        rt::sleep(Nanos::from_secs(1)).await;
        assert!(!reads.is_finished());
        slow.release();
        assert!(last.await);
        assert_eq!(reads.await, (2, true));
        assert_eq!(first_byte(&third).await, 3);
    });
}

/// Whatever the order, the writes at the device are those of one opening after the other, and an
/// opening only writes if nothing was written by another since it was opened.
#[test]
fn writes_of_openings_never_mix() {
    for seed in 0..200 {
        Runtime::simulated(seed).block_on(async {
            let target = SingleWriter::new(memory());
            let order = Rc::new(std::cell::RefCell::new(Vec::new()));
            let mut tasks = Vec::new();
            for opening in 0..6_u8 {
                let (target, order) = (target.clone(), order.clone());
                tasks.push(rt::spawn(async move {
                    rt::sleep(Nanos(rt::random_below(1000))).await;
                    let device = target.open();
                    let seen = order.borrow().last().copied();
                    for write in 0..4 {
                        rt::sleep(Nanos(rt::random_below(300))).await;
                        if device.write(0, block(opening), true).await.is_err() {
                            break;
                        }
                        let before = order.borrow().last().copied();
                        if write == 0 {
                            assert_eq!(before, seen, "{opening} has not seen that");
                        }
                        order.borrow_mut().push(opening);
                    }
                }));
            }
            for task in tasks {
                task.await;
            }
            let order = order.borrow();
            let mut writers = order.clone();
            writers.dedup();
            let count = writers.len();
            writers.sort_unstable();
            writers.dedup();
            assert_eq!(writers.len(), count, "{order:?}");
        });
    }
}

#[test]
fn of_two_openings_that_wait_for_the_same_command_one_becomes_the_writer() {
    Runtime::simulated(2).block_on(async {
        let slow = Hung::new(memory());
        let target = SingleWriter::new(slow.clone());
        let old = target.open();
        slow.hang(Ops::WRITE);
        let last = rt::spawn(async move { old.write(0, block(1), true).await.is_ok() });
        rt::sleep(Nanos::from_secs(1)).await;
        let both = [2, 3].map(|salt| {
            let device = target.open();
            rt::spawn(async move { device.write(0, block(salt), true).await.is_ok() })
        });
        rt::sleep(Nanos::from_secs(1)).await;
        slow.release();
        assert!(last.await);
        let taken = rt::join_all(both).await;
        assert_eq!(taken.iter().filter(|is_taken| **is_taken).count(), 1, "{taken:?}");
        let salt = if taken[0] { 2 } else { 3 };
        assert_eq!(first_byte(&target.open()).await, salt);
    });
}
