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
