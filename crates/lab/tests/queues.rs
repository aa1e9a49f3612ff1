//! Several queues with arbitration on one device, against formulas: shares of weights, max-min
//! fairness of turns, and waits by priority (Cobham).

mod common;

use forebay_flash::DeviceSpec;
use forebay_lab::load::{Arrivals, Load};
use forebay_lab::queues::{Arbitration, Class, Queue, Queues};
use forebay_lab::timeline::{Phase, PhaseOutcome, Timeline};

use common::SERVER;

/// Eight channels with four dies.
const FLASH: &str = r#"
name = "flash"
capacity_bytes = 268_435_456
[interface]
kind = "nvme"
bandwidth_mb_s = 4000
command_us = 0
queue_depth = 65535
bit_error_rate = 0
[media.flash.geometry]
channels = 8
dies_per_channel = 4
planes_per_die = 2
blocks_per_plane = 24
pages_per_block = 64
page_bytes = 8192
[media.flash.timing]
read_us = 75
program_us = 750
erase_us = 3800
channel_mb_s = 333
"#;

fn run_on(device: &str, phases: Vec<Phase>) -> PhaseOutcome {
    let device: DeviceSpec = toml::from_str(device).expect("TOML");
    let timeline = Timeline { device, scale: 1, seed: 7, sample_minutes: 1.0, phases };
    timeline.run().expect("runs").phases.pop().expect("a phase")
}

fn run(phase: Phase) -> PhaseOutcome {
    run_on(SERVER, vec![phase])
}

/// Queues before a device that takes `device_slots` commands at once.
fn queues(device_slots: u32, arbitration: Arbitration, queues: Vec<Queue>) -> Queues {
    Queues { minutes: 0.2, arbitration, burst: 1, device_slots, queue_slots: 0, queues }
}

fn closed(outstanding: u32, class: Class) -> Queue {
    Queue { pattern: Load { random_share: 1.0, outstanding, ..Load::default() }, class }
}

fn open(rate_s: f64, class: Class) -> Queue {
    let mut queue = closed(1, class);
    queue.pattern.arrivals = Arrivals::Poisson { rate_s };
    queue
}

/// How long the device takes for one command, in microseconds.
fn service_us() -> f64 {
    let pattern = closed(1, Class::Medium).pattern;
    let whole = run(Phase::Load { minutes: 0.01, pattern }).whole.expect("a load");
    whole.mean_ms * 1e3
}

#[track_caller]
fn assert_near(what: &str, expected: f64, got: f64, within: f64) {
    let off = (got / expected - 1.0).abs();
    assert!(off <= within, "{what}: {expected:.2} expected, {got:.2} got");
}

#[test]
fn busy_queues_share_by_their_weights() {
    let weighted = Arbitration::Weighted { high: 8, medium: 4, low: 1 };
    let classes = [Class::High, Class::Medium, Class::Medium, Class::Low];
    let four = classes.map(|class| closed(64, class)).to_vec();
    let phase = run(Phase::Queues(queues(4, weighted, four)));
    let all = phase.whole.expect("a load").iops;
    // The two of one class share its four.
    for (queue, share) in phase.queues.iter().zip([8.0, 2.0, 2.0, 1.0]) {
        assert_near("rate", all * share / 13.0, queue.iops, 0.005);
        // Each queue keeps 64 requests, in it and in the device.
        assert_near("response", 64.0 / queue.iops * 1e3, queue.mean_ms, 0.01);
    }
    let one =
        run(Phase::Queues(queues(4, Arbitration::RoundRobin, vec![closed(64, Class::Medium)])));
    assert_near("rate of all", one.whole.expect("a load").iops, all, 0.001);
}

#[test]
fn turns_protect_a_shallow_queue_from_a_deep_one() {
    let service_us = service_us();
    for burst in [1, 4] {
        let two = vec![closed(1, Class::Medium), closed(64, Class::Medium)];
        let of = Queues { burst, ..queues(1, Arbitration::RoundRobin, two) };
        let phase = run(Phase::Queues(of));
        let (shallow, deep) = (phase.queues[0], phase.queues[1]);
        // Both have half of the device: a queue whose next request is there in time keeps its turn.
        assert_near("shallow", 2.0 * service_us, shallow.mean_ms * 1e3, 0.005);
        assert_near("deep", 128.0 * service_us, deep.mean_ms * 1e3, 0.01);
        // It waits for one turn at most; in one queue it would wait for 64 commands.
        let longest_us = (f64::from(burst) + 1.0) * service_us;
        assert_near("longest", longest_us, shallow.responses.writes.max_ms * 1e3, 0.005);
    }
}

#[test]
fn turns_are_max_min_fair_when_more_arrives_than_the_device_takes() {
    let rate_s = 1e6 / service_us();
    let offered = [0.2, 0.6, 0.8];
    let three = offered.map(|share| open(share * rate_s, Class::Medium)).to_vec();
    let phase = run(Phase::Queues(queues(1, Arbitration::RoundRobin, three)));
    // The first asks for less than a third and has it; the others share the rest.
    for (queue, share) in phase.queues.iter().zip([0.2, 0.4, 0.4]) {
        assert_near("rate", share * rate_s, queue.iops, 0.01);
    }
}

#[test]
fn urgent_and_low_requests_wait_as_cobhams_formula_says() {
    let service_us = service_us();
    let weighted = Arbitration::Weighted { high: 1, medium: 1, low: 1 };
    for (first, second) in [(0.2, 0.3), (0.3, 0.5)] {
        let rate = |share: f64| share * 1e6 / service_us;
        let two = vec![open(rate(first), Class::Urgent), open(rate(second), Class::Low)];
        let phase = run(Phase::Queues(queues(1, weighted, two)));
        // A command that has begun is not interrupted: all wait for what is left of it.
        let left_us = (first + second) * service_us / 2.0;
        let urgent_us = service_us + left_us / (1.0 - first);
        let low_us = service_us + left_us / ((1.0 - first) * (1.0 - first - second));
        assert_near("urgent", urgent_us, phase.queues[0].mean_ms * 1e3, 0.03);
        assert_near("low", low_us, phase.queues[1].mean_ms * 1e3, 0.03);
    }
}

#[test]
fn no_more_commands_of_a_queue_are_in_the_device_than_it_has_slots() {
    let one = vec![closed(64, Class::Medium)];
    let of = Queues { queue_slots: 2, ..queues(32, Arbitration::RoundRobin, one) };
    let phase = run(Phase::Queues(of));
    let (integrated, product) = phase.little.expect("a load");
    assert_near("in the device", 2.0, integrated, 0.001);
    assert_near("Little's law", integrated, product, 1e-6);
    assert_near(
        "in the queue as well",
        64.0 / 2.0,
        {
            let queue = phase.queues[0];
            queue.iops * queue.mean_ms / 1e3 / integrated
        },
        0.001,
    );
}

/// The case of queues that MQSim's authors published, on the model.
#[test]
fn limit_of_each_queue_bounds_what_a_deep_queue_does_to_a_shallow_one() {
    let response_ms = |queue_slots, depths: &[u32]| {
        let reads = |&outstanding: &u32| Queue {
            pattern: Load { read_share: 1.0, ..closed(outstanding, Class::Medium).pattern },
            class: Class::Medium,
        };
        let all = depths.iter().map(reads).collect();
        let of = Queues { minutes: 0.002, queue_slots, ..queues(0, Arbitration::RoundRobin, all) };
        let fill = Phase::Fill { block_bytes: 65_536 };
        run_on(FLASH, vec![fill, Phase::Queues(of)]).queues[0].mean_ms
    };
    let alone = response_ms(16, &[8]);
    let limited = [16, 32, 256].map(|deep| response_ms(16, &[8, deep]) / alone);
    assert!(limited.iter().all(|slower| (1.1..1.4).contains(slower)), "{limited:?}");
    assert_near("a queue twice the limit and one 16 times", limited[1], limited[2], 0.01);
    let free = [32, 256].map(|deep| response_ms(512, &[8, deep]) / alone);
    assert!(free[0] > 1.4 && free[1] > 5.0, "{free:?}");
}

/// The case of the back end that MQSim's authors published, on the model: reads of two queues meet
/// at the dies and channels, and nothing bounds the deeper one.
#[test]
fn reads_of_two_queues_that_share_the_dies_wait_like_those_of_one() {
    let mean_ms = |depths: &[u32]| {
        let reads = |&outstanding: &u32| Queue {
            pattern: Load { read_share: 1.0, ..closed(outstanding, Class::Medium).pattern },
            class: Class::Medium,
        };
        let all = depths.iter().map(reads).collect();
        let of = Queues { minutes: 0.01, ..queues(0, Arbitration::RoundRobin, all) };
        let fill = Phase::Fill { block_bytes: 65_536 };
        run_on(FLASH, vec![fill, Phase::Queues(of)]).queues.iter().map(|q| q.mean_ms).collect()
    };
    for deep in [2, 32, 256] {
        let two: Vec<f64> = mean_ms(&[2, deep]);
        let one: Vec<f64> = mean_ms(&[2 + deep]);
        // The dies do not know of queues.
        assert_near("the shallow queue", one[0], two[0], 0.04);
        assert_near("the deep queue", one[0], two[1], 0.04);
    }
}

/// The case of the data cache that MQSim's authors published, on the model: a queue that asks for
/// less than the flash can do has the time of the buffer, until another fills the buffer.
#[test]
fn full_write_buffer_makes_a_slow_queue_wait_for_flash() {
    let mean_us = |others: &[u32]| {
        let deep = others.iter().map(|&outstanding| closed(outstanding, Class::Medium));
        let all = [open(5_000.0, Class::Medium)].into_iter().chain(deep).collect();
        let of = Queues { minutes: 0.02, ..queues(0, Arbitration::RoundRobin, all) };
        let fill = Phase::Fill { block_bytes: 65_536 };
        let buffered =
            FLASH.to_owned() + "[media.flash.cache]\nbytes = 8_388_608\nplp = \"full\"\n";
        run_on(&buffered, vec![fill, Phase::Queues(of)]).queues[0].mean_ms * 1e3
    };
    let alone = mean_us(&[]);
    let beside = [8, 256].map(|deep| mean_us(&[deep]));
    // Each write waits until the flash has taken one of those that wait before it.
    assert!(beside[1] > 10.0 * alone && beside[1] > 3.0 * beside[0], "{alone} {beside:?}");
}
