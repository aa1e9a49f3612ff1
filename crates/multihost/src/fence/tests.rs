use std::cell::RefCell;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, MemoryDevice};
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

use super::Fence;
use crate::timing::clock;

/// Long enough for a command on memory.
const MOMENT: Nanos = Nanos::from_millis(10);

/// Outcomes of writes that have ended: whether each succeeded.
type Outcomes = Rc<RefCell<Vec<bool>>>;

fn fenced() -> (Device, Rc<Fence>, Outcomes) {
    let fence = Fence::new();
    let device = fence.guard(Rc::new(MemoryDevice::new("a", 1 << 20)));
    (device, fence, Rc::default())
}

fn write_later(device: &Device, outcomes: &Outcomes) {
    let (device, outcomes) = (device.clone(), outcomes.clone());
    drop(rt::spawn(async move {
        let outcome = device.write(0, IoBuf::zeroed(4096).freeze(), true).await;
        outcomes.borrow_mut().push(outcome.is_ok());
    }));
}

#[test]
fn write_waits_until_heartbeat_is_read_again() {
    Runtime::simulated(1).block_on(async {
        let (device, fence, outcomes) = fenced();
        rt::sleep(Nanos::from_secs(60)).await;
        write_later(&device, &outcomes);
        rt::sleep(MOMENT).await;
        assert_eq!(outcomes.take(), [true], "the fence is not armed yet");

        fence.confirm(clock());
        rt::sleep(Nanos::from_secs(2)).await;
        write_later(&device, &outcomes);
        rt::sleep(MOMENT).await;
        assert_eq!(outcomes.take(), [true]);

        // As after a SIGSTOP: time has passed, and no heartbeat was read.
        rt::sleep(Nanos::from_secs(2)).await;
        write_later(&device, &outcomes);
        rt::sleep(Nanos::from_secs(9)).await;
        assert!(outcomes.take().is_empty());
        fence.confirm(clock());
        rt::sleep(MOMENT).await;
        assert_eq!(outcomes.take(), [true]);
    });
}

#[test]
fn lost_fence_refuses_writes_for_good() {
    Runtime::simulated(1).block_on(async {
        let (device, fence, outcomes) = fenced();
        fence.confirm(clock());
        rt::sleep(Nanos::from_secs(9)).await;
        write_later(&device, &outcomes);
        fence.lose();
        rt::sleep(MOMENT).await;
        assert_eq!(outcomes.take(), [false]);
        fence.confirm(clock());
        write_later(&device, &outcomes);
        rt::sleep(MOMENT).await;
        assert_eq!(outcomes.take(), [false]);
    });
}

#[test]
fn suspension_expires_the_heartbeat_but_no_deadline() {
    Runtime::simulated(1).block_on(async {
        let (device, fence, outcomes) = fenced();
        fence.confirm(clock());
        let before = rt::now();
        rt::suspend(Nanos::from_secs(60));
        assert_eq!(rt::now(), before, "deadlines are counted by this clock");
        write_later(&device, &outcomes);
        rt::sleep(MOMENT).await;
        assert!(outcomes.take().is_empty(), "another owner may have imported the pool");
        fence.confirm(clock());
        rt::sleep(MOMENT).await;
        assert_eq!(outcomes.take(), [true]);
    });
}

// The kernel may hold a write of a paused process, and execute it when the process resumes.
#[test]
fn write_that_completes_after_a_gap_counts_once_the_heartbeat_is_read_again() {
    for is_replaced in [false, true] {
        Runtime::simulated(1).block_on(async move {
            let (kernel, held, outcomes) = fenced();
            let fence = Fence::new();
            let device = fence.guard(kernel);
            fence.confirm(clock());
            held.confirm(clock());
            rt::sleep(Nanos::from_secs(4)).await;
            fence.confirm(clock());
            write_later(&device, &outcomes);
            rt::sleep(Nanos::from_secs(4)).await;
            held.confirm(clock());
            rt::sleep(MOMENT).await;
            assert!(outcomes.take().is_empty(), "a new owner may have read before this write");
            match is_replaced {
                true => fence.lose(),
                false => fence.confirm(clock()),
            }
            rt::sleep(MOMENT).await;
            assert_eq!(outcomes.take(), [!is_replaced]);
        });
    }
}
