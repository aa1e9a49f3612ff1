use super::*;

fn queues(arbitration: Arbitration, burst: u32, classes: &[Class]) -> Queues {
    let queue = |class: &Class| Queue { pattern: Load::default(), class: *class };
    Queues {
        minutes: 1.0,
        arbitration,
        burst,
        device_slots: 0,
        queue_slots: 0,
        queues: classes.iter().map(queue).collect(),
    }
}

/// The first `count` choices, as digits.
fn choices(of: &Queues, count: usize, is_ready: impl Fn(usize) -> bool) -> String {
    let mut arbiter = Arbiter::new(of);
    (0..count).map_while(|_| arbiter.next(&is_ready)).map(|queue| queue.to_string()).collect()
}

const WEIGHTED: Arbitration = Arbitration::Weighted { high: 3, medium: 2, low: 1 };

#[test]
fn each_queue_has_its_turn_and_its_burst() {
    let three = [Class::Medium; 3];
    let plain = queues(Arbitration::RoundRobin, 1, &three);
    assert_eq!(choices(&plain, 7, |_| true), "0120120");
    assert_eq!(choices(&plain, 5, |queue| queue != 1), "02020", "an empty queue loses its turn");
    let bursts = queues(Arbitration::RoundRobin, 2, &three);
    assert_eq!(choices(&bursts, 8, |_| true), "00112200");
    assert_eq!(choices(&bursts, 3, |queue| queue == 2), "222");
    assert_eq!(choices(&bursts, 3, |_| false), "");
}

#[test]
fn weights_are_commands_of_a_round_and_urgent_goes_first() {
    let all = [Class::Low, Class::High, Class::Medium, Class::High];
    let weighted = queues(WEIGHTED, 1, &all);
    // Queues 1 and 3 share the three commands of their class.
    assert_eq!(choices(&weighted, 12, |_| true), "131220313220");
    assert_eq!(choices(&weighted, 4, |queue| queue == 0), "0000", "no round waits for a class");
    let urgent = queues(WEIGHTED, 1, &[Class::Low, Class::Urgent, Class::Urgent]);
    assert_eq!(choices(&urgent, 4, |_| true), "1212", "low waits as long as urgent has commands");
    assert_eq!(choices(&urgent, 2, |queue| queue == 0), "00");
}

#[test]
fn impossible_queues_are_refused_with_their_field() {
    let good = || queues(WEIGHTED, 1, &[Class::High, Class::Low]);
    good().check().expect("possible");
    let pattern = |edit: fn(&mut Load)| {
        let mut queues = good();
        edit(&mut queues.queues[1].pattern);
        queues
    };
    let zero = Arbitration::Weighted { high: 1, medium: 1, low: 0 };
    for (wrong, field) in [
        (queues(WEIGHTED, 1, &[]), "queues"),
        (queues(WEIGHTED, 0, &[Class::High]), "burst"),
        (queues(zero, 1, &[Class::High]), "weighted"),
        (queues(Arbitration::RoundRobin, 1, &[Class::High]), "class"),
        (pattern(|load| load.workers = 2), "workers"),
        (pattern(|load| load.streams = Streams::Workers), "streams"),
        (pattern(|load| load.read_share = 2.0), "read_share"),
    ] {
        let error = wrong.check().expect_err("must refuse");
        assert!(error.exit_code() == 2 && error.to_string().contains(field), "{field}: {error}");
    }
}
