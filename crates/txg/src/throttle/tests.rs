use std::task::Context;

use forebay_rt::Runtime;

use super::*;

fn demand(volume: u32) -> Demand {
    Demand { bytes: 4096, volume: VolumeId(volume), weight: 100, is_durable: false }
}

// A list that only grows would take memory for each volume that a pool has ever had.
#[test]
fn volumes_that_owe_nothing_are_forgotten_however_many_owed_at_once() {
    let mut queue = Queue::default();
    for round in 0..20 {
        // Writers that wait; then one that need not, which forgets the others.
        for volume in 0..500 {
            queue.place(&demand(round * 500 + volume));
        }
        queue.now = *queue.finish.values().max().expect("they wrote");
        queue.forget_past();
        assert!(queue.finish.len() < 1_000, "{} volumes in round {round}", queue.finish.len());
    }
}

// A client that goes away cancels its writes, also one whose room has just been given.
#[test]
fn room_that_was_given_to_a_writer_that_went_away_is_free_again() {
    Runtime::simulated(1).block_on(async {
        for is_durable in [false, true] {
            let throttle = Throttle::new(1 << 20);
            let all = Demand { bytes: 1 << 20, is_durable, ..demand(1) };
            let mut first = Vec::new();
            while let Some(held) = throttle.admit_at_once(&Demand { bytes: 4096, ..all }) {
                first.push(throttle.permit(throttle.take(held)));
            }
            let mut waiting = Box::pin(throttle.admit(Demand { bytes: 4096, ..all }));
            let context = &mut Context::from_waker(Waker::noop());
            assert!(waiting.as_mut().poll(context).is_pending(), "there is room");
            let before = throttle.dirty_bytes();
            drop(first.pop());
            assert_eq!(throttle.dirty_bytes(), before, "the one that waits has the room");
            drop(waiting);
            assert_eq!(throttle.dirty_bytes(), before - 4096);
            drop(first);
            assert_eq!(throttle.dirty_bytes(), 0);
        }
    });
}
