use super::*;
use crate::spec::InterfaceSpec;

fn link(edit: impl Fn(&mut InterfaceSpec)) -> Link {
    let mut spec = InterfaceSpec::of(InterfaceKind::Sata2);
    spec.bit_error_rate = Some(0.0);
    spec.command_us = Some(10.0);
    spec.bandwidth_mb_s = Some(100.0);
    spec.hop_us = Some(3.0);
    edit(&mut spec);
    Link::new(&spec, 1)
}

#[test]
fn write_waits_for_the_link_and_for_each_hop() {
    let mut link = link(|_| {});
    let request = Request::write(0, 4096);
    // 10 us of command and 40.96 us of data each.
    assert_eq!(link.send(0, &request), 50_960);
    assert_eq!(link.send(0, &request), 101_920);
    assert_eq!(link.complete(0, 101_920, &request), Nanos(107_920));
}

#[test]
fn commands_beyond_the_queue_depth_wait_for_a_slot() {
    let mut link = link(|spec| spec.queue_depth = Some(2));
    let request = Request::read(0, 4096);
    for _ in 0..2 {
        let sent = link.send(0, &request);
        link.complete(0, sent + 1_000_000, &request);
    }
    // The third starts when the first has completed: 10 us + 1 ms + two hops.
    assert_eq!(link.send(0, &request), 1_016_000 + 10_000);
}

#[test]
fn adapter_cap_limits_one_device_and_several() {
    let mut link = link(|spec| spec.hba_iops_cap = Some(1_000.0));
    let request = Request::read(0, 512);
    let sent: Vec<u64> = (0..3).map(|_| link.send(0, &request)).collect();
    assert_eq!(sent, [10_000, 1_010_000, 2_010_000]);
    let mut hba = Hba::new(1_000.0);
    let passed: Vec<u64> = (0..3).map(|_| hba.pass(Nanos(5)).0).collect();
    assert_eq!(passed, [5, 1_000_005, 2_000_005]);
}

#[test]
fn bit_errors_cost_retries_in_proportion() {
    let mut link = link(|spec| spec.bit_error_rate = Some(1e-6));
    let request = Request::write(0, 4096);
    let mut now = 0;
    for _ in 0..20_000 {
        now = link.send(now, &request);
    }
    // 33,024 bits each: 3.3 % are hit.
    let share = link.stats.link_retries as f64 / 20_000.0;
    assert!((0.030..0.037).contains(&share), "{share}");
}
