use super::*;

const PAGE: &str = r#"
name = "disk"
capacity_bytes = 2_000_000_000_000
interface = { kind = "sata6", bit_error_rate = 0 }
[media.disk]
rpm = 7200
track_seek_ms = 0.8
full_seek_ms = 18
outer_mb_s = 200
inner_mb_s = 100
"#;

fn disk(edit: impl Fn(&mut DiskSpec)) -> Disk {
    let mut spec: DeviceSpec = toml::from_str(PAGE).unwrap();
    match &mut spec.media {
        MediaSpec::Disk(disk) => edit(disk),
        other => panic!("the page is a disk, not {other:?}"),
    }
    Disk::new(&spec, 1).unwrap()
}

fn one_by_one<'a>(disk: &mut Disk, count: u64, make: impl Fn(u64) -> Request<'a>) -> f64 {
    let from = Nanos(disk.link.latest());
    let mut now = from;
    for number in 0..count {
        now = disk.submit(now, &make(number)).unwrap().at;
    }
    now.since(from).as_secs_f64() / count as f64
}

fn scattered(number: u64) -> u64 {
    u64::from(Chance::new(number).below(488_000_000)) * 4096
}

#[test]
fn random_reads_take_a_seek_and_half_a_turn() {
    let mut disk = disk(|_| {});
    let mean_s = one_by_one(&mut disk, 4_000, |n| Request::read(scattered(n), 4096));
    // A mean seek over a third of the surface by the square root law, 4.17 ms of rotation.
    let expected = 0.8e-3 + 17.2e-3 * 0.533 + 60.0 / 7200.0 / 2.0;
    assert!((mean_s / expected - 1.0).abs() < 0.03, "{mean_s} against {expected}");
}

#[test]
fn sequential_reads_stream_at_the_zone_s_rate() {
    let rate = |start: u64| {
        let mut disk = disk(|spec| spec.read_ahead_bytes = 8 << 20);
        let mean_s = one_by_one(&mut disk, 2_000, |n| Request::read(start + n * 131_072, 131_072));
        131_072.0 / mean_s / 1e6
    };
    let (outer, inner) = (rate(0), rate(1_999_000_000_000 / 512 * 512));
    assert!((190.0..=200.0).contains(&outer), "{outer}");
    assert!((95.0..=101.0).contains(&inner), "{inner}");
}

#[test]
fn a_write_cache_hides_latency_until_it_is_full_and_sorts_what_it_holds() {
    let mut through = disk(|_| {});
    let slow = one_by_one(&mut through, 2_000, |n| Request::write(scattered(n), 4096));
    let mut cached = disk(|spec| spec.write_cache_bytes = 1 << 20);
    let first = one_by_one(&mut cached, 200, |n| Request::write(scattered(n), 4096));
    assert!(first < 1e-4, "{first}");
    let full = one_by_one(&mut cached, 5_000, |n| Request::write(scattered(n), 4096));
    assert!(full < 0.8 * slow, "{full} against {slow}");
    let latest = Nanos(cached.link.latest());
    let flushed = cached.submit(latest, &Request::flush()).unwrap().at;
    assert!(flushed.since(latest) > Nanos::from_millis(100));
    assert_eq!(cached.durable_before(flushed), WriteId(cached.last_write.0 + 1));
}

#[test]
fn a_cut_loses_cached_writes_and_tears_the_one_in_progress() {
    let mut disk = disk(|spec| spec.write_cache_bytes = 1 << 20);
    let mut now = Nanos(0);
    for number in 0..100 {
        now = disk.submit(now, &Request::write(scattered(number), 4096)).unwrap().at;
    }
    let durable = disk.durable_before(now);
    let report = disk.power_cut(now, &mut Chance::new(1));
    assert!(report.damage.len() > 90);
    assert!(report.damage.iter().all(|hit| hit.write >= Some(durable)));
    let on = disk.power_on(now, &mut Chance::new(1)).ready_at;
    // A large write through, cut half way.
    let request = Request::write(0, 8 << 20).fua();
    let done = disk.submit(on, &request).unwrap();
    let half = Nanos(on.0 + done.at.since(on).0 / 2);
    let report = disk.power_cut(half, &mut Chance::new(1));
    let Fate::Shorn { intact_bytes } = report.damage[0].fate else { panic!("{report:?}") };
    assert!(intact_bytes > 2 << 20 && intact_bytes < 6 << 20, "{intact_bytes}");
}

#[test]
fn fua_and_an_honest_flush_survive_a_cut() {
    let mut disk = disk(|spec| spec.write_cache_bytes = 1 << 20);
    let cached = disk.submit(Nanos(0), &Request::write(1 << 30, 4096)).unwrap();
    let fua = disk.submit(cached.at, &Request::write(0, 4096).fua()).unwrap();
    let flushed = disk.submit(fua.at, &Request::flush()).unwrap();
    assert_eq!(disk.power_cut(flushed.at, &mut Chance::new(1)).damage, vec![]);
}

/// A disk of 7,200 rpm turns 120 times a second: what is appended after the last write was answered
/// comes under the head one turn later.
#[test]
fn durable_appends_wait_for_a_turn_each() {
    let mut disk = disk(|_| {});
    let mean_s = one_by_one(&mut disk, 240, |n| Request::write(n * 4096, 4096).fua());
    assert!((115.0..=121.0).contains(&(1.0 / mean_s)), "{} a second", 1.0 / mean_s);
}
