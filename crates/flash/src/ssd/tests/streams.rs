//! Streams against what must follow from them.

use super::*;

const STREAMS: u32 = 4;

/// Two logs in one device: one goes around its half `fast` times while the other goes around once.
/// Bytes programmed for each byte written, after one round of the slow one.
fn two_logs(streams: u32, fast: u64, stream_of: impl Fn(u64) -> u8) -> f64 {
    let mut ssd = ssd(|flash| flash.ftl.streams = streams);
    let half = u64::from(units(&ssd)) / 2;
    let step = fast + 1;
    let request = |n: u64| {
        let (log, at) = match n % step {
            0 => (0, n / step % half),
            part => (1, half + (n / step * fast + part - 1) % half),
        };
        Request::write(at * 4096, 4096).on_stream(stream_of(log))
    };
    let round = half * step;
    let end = drive(&mut ssd, Nanos(0), 8, round, |n, _| request(n));
    let before = ssd.stats(end);
    let end = drive(&mut ssd, end, 8, round, |n, _| request(round + n));
    ssd.ftl().audit();
    ssd.stats(end).since(&before).write_amplification()
}

#[test]
fn logs_of_two_speeds_cost_nothing_when_each_has_a_stream() {
    let mixed = two_logs(STREAMS, 7, |_| 0);
    let apart = two_logs(STREAMS, 7, |log| log as u8);
    // Superblocks of one log die whole: there is nothing to move.
    assert!((0.995..1.005).contains(&apart), "{apart}");
    assert!(mixed > 1.1, "{mixed}");
}

#[test]
fn a_stream_that_the_device_lacks_is_stream_zero() {
    let one = two_logs(1, 7, |_| 0);
    assert_eq!(one, two_logs(1, 7, |log| log as u8));
    assert_eq!(two_logs(STREAMS, 7, |_| 0), two_logs(STREAMS, 7, |log| 4 + log as u8));
}

#[test]
fn a_flush_makes_the_writes_of_all_streams_durable() {
    let mut ssd = ssd(|flash| flash.ftl.streams = STREAMS);
    let mut now = Nanos(0);
    for n in 0..STREAMS {
        let request = Request::write(u64::from(n) * 4096, 4096).on_stream(n as u8);
        now = ssd.submit(now, &request).unwrap().at;
    }
    assert_eq!(ssd.durable_before(now), WriteId(1));
    let flushed = ssd.submit(now, &Request::flush()).unwrap().at;
    assert_eq!(ssd.durable_before(flushed), WriteId(u64::from(STREAMS) + 1));
    let report = ssd.power_cut(flushed, &mut Chance::new(1));
    assert_eq!(report, CutReport::default());
}

#[test]
fn units_that_wait_in_parked_stripes_are_read_from_the_buffer() {
    let mut ssd = ssd(|flash| {
        flash.ftl.streams = STREAMS;
        flash.geometry.page_bytes = 16_384;
        flash.geometry.blocks_per_plane = 16;
    });
    let mut now = Nanos(0);
    for n in 0..STREAMS {
        let request = Request::write(u64::from(n) * 4096, 4096).on_stream(n as u8);
        now = ssd.submit(now, &request).unwrap().at;
    }
    for n in 0..u64::from(STREAMS) {
        let read = ssd.submit(now, &Request::read(n * 4096, 4096)).unwrap().at;
        assert!(read.since(now) < Nanos::from_micros(60), "a program was waited for");
        now = read;
    }
    assert_eq!(ssd.stats(now).media_read_ns, 0, "nothing was read from flash");
}

#[test]
fn idle_streams_do_not_stop_the_others() {
    let mut ssd = ssd(|flash| {
        flash.ftl.streams = STREAMS;
        flash.cache.bytes = 0;
        flash.geometry.page_bytes = 16_384;
        flash.geometry.blocks_per_plane = 16;
    });
    let mut now = Nanos(0);
    for n in 1..STREAMS {
        let request = Request::write(u64::from(n) * 4096, 4096).on_stream(n as u8);
        now = ssd.submit(now, &request).unwrap().at;
    }
    // The buffer has few places, and three of them belong to stripes that stay open.
    let end = drive(&mut ssd, now, 32, 8_000, |n, _| Request::write((n % 2000) * 4096, 4096));
    assert!(end.since(now) < Nanos::from_secs(1), "{end:?}");
    ssd.ftl().audit();
}

proptest! {
    #[test]
    fn any_mix_of_streams_keeps_the_map_whole(
        seed in any::<u64>(),
        streams in 1..=8_u32,
        policy in 0..3_usize,
        superblock_dies in prop_oneof![Just(0_u32), Just(1), Just(2)],
    ) {
        let mut ssd = Ssd::new(&spec(|flash| {
            flash.ftl.streams = streams;
            flash.ftl.superblock_dies = superblock_dies;
            flash.geometry.blocks_per_plane = 60;
            flash.ftl.policy = [
                CleaningPolicy::Greedy,
                CleaningPolicy::Fifo,
                CleaningPolicy::CostBenefit,
            ][policy];
        }), seed).unwrap();
        let units = units(&ssd);
        drive(&mut ssd, Nanos(seed % 1000), 16, 12_000, |n, chance| match n % 50 {
            49 => Request::flush(),
            48 => Request::trim(u64::from(chance.below(units)) * 4096, 4096),
            _ => {
                let stream = (chance.bits() % 9) as u8;
                Request::write(u64::from(chance.below(units)) * 4096, 4096).on_stream(stream)
            }
        });
        ssd.ftl().audit();
    }
}
