//! A worker that gathers records while their group is committed or the rings change.

use super::*;

#[test]
fn records_after_a_group_that_was_committed_while_it_gathered_are_written() {
    let gather = Nanos::from_micros(150);
    let config = LogConfig { group_commit: GroupCommit::Fixed { gather }, ..LogConfig::new(POOL) };
    // Workers take turns, so that another one gathers after each frame.
    for frames in 0..3 {
        let mut rig = Rig::new(config, rings(1, 1));
        rig.turn();
        for _ in 0..frames {
            rig.append(&[1], false);
            rig.run();
        }
        rig.append(&[1], false);
        rig.turn();
        assert_eq!(rig.timers, [frames], "a worker gathers");
        rig.open = rig.open.next();
        rig.commit();
        rig.turn();
        rig.append(&[1], false);
        rig.run();
        assert_eq!((rig.queue.len(), rig.frames.len()), (0, frames + 1));
    }
}

#[test]
fn fewer_rings_than_the_worker_that_gathers_are_written_to() {
    let gather = Nanos::from_micros(150);
    let group_commit = GroupCommit::Fixed { gather };
    let config = LogConfig { frames_in_flight: 1, group_commit, ..LogConfig::new(POOL) };
    let mut rig = Rig::new(config, rings(2, 1));
    rig.turn();
    rig.append(&[1], false);
    rig.run();
    rig.append(&[1], false);
    rig.turn();
    assert_eq!(rig.timers, [1], "the worker of the second ring gathers");
    rig.renew_with(1);
    rig.turn();
    rig.append(&[1], false);
    rig.run();
    rig.check();
    assert_eq!((rig.queue.len(), rig.frames.len()), (0, 1));
}
