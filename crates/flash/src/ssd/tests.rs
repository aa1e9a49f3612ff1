use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::model::Content;
use crate::spec::{CleaningPolicy, FlashSpec};

mod modern;
mod streams;

const PAGE: &str = r#"
name = "small"
capacity_bytes = 16_777_216
interface = { kind = "sata2", bit_error_rate = 0 }
power = { idle_w = 0.5, read_w = 1.0, write_w = 2.5, erase_w = 1.5 }
[media.flash.geometry]
channels = 2
dies_per_channel = 2
planes_per_die = 1
blocks_per_plane = 48
pages_per_block = 32
page_bytes = 4096
[media.flash.timing]
read_us = 25
program_us = 200
erase_us = 1500
[media.flash.cache]
bytes = 262144
"#;

fn spec(edit: impl Fn(&mut FlashSpec)) -> DeviceSpec {
    let mut spec: DeviceSpec = toml::from_str(PAGE).unwrap();
    match &mut spec.media {
        MediaSpec::Flash(flash) => edit(flash),
        other => panic!("the page is flash, not {other:?}"),
    }
    spec
}

fn ssd(edit: impl Fn(&mut FlashSpec)) -> Ssd {
    Ssd::new(&spec(edit), 1).unwrap()
}

/// A closed loop of requests: `depth` outstanding, each made from its number and a draw.
fn drive<'a>(
    ssd: &mut Ssd,
    start: Nanos,
    depth: usize,
    count: u64,
    mut make: impl FnMut(u64, &mut Chance) -> Request<'a>,
) -> Nanos {
    // Each call its own draws: repeating the last call's would overwrite the youngest data.
    let mut chance = Chance::new(99 ^ start.0);
    let mut outstanding = vec![start; depth];
    let mut last = start;
    for number in 0..count {
        let (slot, &now) =
            outstanding.iter().enumerate().min_by_key(|(_, at)| **at).expect("depth above 0");
        let completion = ssd.submit(now, &make(number, &mut chance)).unwrap();
        assert_eq!(completion.status, Status::Done);
        assert!(completion.at >= now);
        outstanding[slot] = completion.at;
        last = last.max(completion.at);
    }
    last
}

fn units(ssd: &Ssd) -> u32 {
    (ssd.identity().capacity_bytes / 4096) as u32
}

fn random_writes(ssd: &mut Ssd, start: Nanos, count: u64, offset: u64) -> Nanos {
    let units = units(ssd) - 1;
    drive(ssd, start, 32, count, |_, chance| {
        Request::write(u64::from(chance.below(units)) * 4096 + offset, 4096)
    })
}

fn iops(count: u64, from: Nanos, to: Nanos) -> f64 {
    count as f64 / to.since(from).as_secs_f64()
}

#[test]
fn random_writes_slow_down_once_cleaning_starts() {
    let mut ssd = ssd(|_| {});
    let fresh_end = random_writes(&mut ssd, Nanos(0), 2_000, 0);
    let fresh = iops(2_000, Nanos(0), fresh_end);
    let worn_in = random_writes(&mut ssd, fresh_end, 30_000, 0);
    let steady_end = random_writes(&mut ssd, worn_in, 5_000, 0);
    let steady = iops(5_000, worn_in, steady_end);
    assert!(steady < 0.7 * fresh, "{steady} against {fresh}");
    let later = steady_end + Nanos::from_secs(3600);
    let idle_end = random_writes(&mut ssd, later, 5_000, 0);
    let after_idle = iops(5_000, later, idle_end);
    assert!((after_idle / steady - 1.0).abs() < 0.05, "{after_idle} against {steady}");
    ssd.ftl().audit();
    // Secure erase brings the speed back.
    let erased = ssd.submit(idle_end, &Request::secure_erase()).unwrap().at;
    let again_end = random_writes(&mut ssd, erased, 2_000, 0);
    let again = iops(2_000, erased, again_end);
    assert!((again / fresh - 1.0).abs() < 0.05, "{again} against {fresh}");
}

#[test]
fn four_dies_program_as_fast_as_four_dies_can() {
    let mut ssd = ssd(|_| {});
    let end = drive(&mut ssd, Nanos(0), 32, 4_000, |n, _| Request::write(n * 4096, 4096));
    // 200 us a page and die: 20,000 pages a second, less what fits the buffer at the end.
    let speed = iops(4_000, Nanos(0), end);
    assert!((19_900.0..20_700.0).contains(&speed), "{speed}");
    let utilization = ssd.stats(end).media_utilization();
    assert!((0.97..=1.0).contains(&utilization), "{utilization}");
}

#[test]
fn littles_law_holds_when_nothing_is_outstanding() {
    for depth in [1, 7, 64] {
        let mut ssd = ssd(|_| {});
        let end = drive(&mut ssd, Nanos(0), depth, 5_000, |_, chance| {
            let at = u64::from(chance.below(4000)) * 4096;
            if chance.below(2) == 0 { Request::read(at, 4096) } else { Request::write(at, 4096) }
        });
        let stats = ssd.stats(end);
        let outstanding = stats.mean_outstanding();
        assert_eq!(stats.outstanding, 0);
        assert_eq!(stats.outstanding_ns, stats.response_sum_ns);
        assert!(outstanding > 0.9 * depth as f64 && outstanding <= depth as f64 + 1e-9);
    }
}

#[test]
fn misaligned_writes_cost_a_read_and_two_units_unless_they_are_sequential() {
    let run = |offset, sequential| {
        let mut ssd = ssd(|_| {});
        let units = u64::from(units(&ssd)) - 1;
        let filled = drive(&mut ssd, Nanos(0), 8, units, |n, _| Request::write(n * 4096, 4096));
        let before = ssd.stats(filled);
        let end = drive(&mut ssd, filled, 32, 8_000, |n, chance| {
            let unit = if sequential { n % units } else { u64::from(chance.below(units as u32)) };
            Request::write(unit * 4096 + offset, 4096)
        });
        (iops(8_000, filled, end), ssd.stats(end).since(&before).read_modify_writes)
    };
    let (aligned, none) = run(0, false);
    let (misaligned, many) = run(512, false);
    assert_eq!(none, 0);
    assert!(many > 15_000, "{many}");
    assert!(misaligned < 0.6 * aligned, "{misaligned} against {aligned}");
    let (aligned, _) = run(0, true);
    let (misaligned, few) = run(512, true);
    assert!(few < 20, "{few}");
    assert!(misaligned > 0.95 * aligned, "{misaligned} against {aligned}");
}

#[test]
fn compressible_data_is_faster_only_with_a_compressing_controller() {
    let zeros = vec![0x5a_u8; 4096];
    let mut noise = vec![0_u8; 4096];
    let mut chance = Chance::new(5);
    noise.iter_mut().for_each(|byte| *byte = chance.bits() as u8);
    let run = |content: Content<'_>, compresses: bool| {
        let mut ssd = ssd(|flash| {
            flash.controller.compression =
                compresses.then_some(crate::CompressionSpec { granule_bytes: 512 });
        });
        let units = units(&ssd);
        let write = |_, chance: &mut Chance| {
            Request::write(u64::from(chance.below(units)) * 4096, 4096).with(content)
        };
        let from = drive(&mut ssd, Nanos(0), 32, 20_000, write);
        let end = drive(&mut ssd, from, 32, 4_000, write);
        ssd.ftl().audit();
        (iops(4_000, from, end), ssd.stats(end).write_amplification())
    };
    let (zeros_plain, _) = run(Content::Bytes(&zeros), false);
    let (noise_plain, _) = run(Content::Bytes(&noise), false);
    let (zeros_packed, wa) = run(Content::Bytes(&zeros), true);
    let (noise_packed, _) = run(Content::Bytes(&noise), true);
    assert_eq!(zeros_plain, noise_plain);
    assert!(zeros_packed > 3.0 * noise_packed, "{zeros_packed} against {noise_packed}");
    assert!(wa < 0.2, "{wa}");
    let (half_packed, _) = run(Content::Stored(500), true);
    assert!(noise_packed < half_packed && half_packed < zeros_packed);
}

/// Writes sent at once that a fresh device has room for, before the first program is done.
fn taken_at_once(content: Content<'_>) -> usize {
    let mut ssd = ssd(|flash| {
        flash.controller.compression = Some(crate::CompressionSpec { granule_bytes: 512 });
        // So slow that no place is free again.
        flash.timing.program_us = 1e6;
    });
    let write = |n| Request::write(n * 4096, 4096).with(content);
    let taken = |ssd: &mut Ssd, n| ssd.submit(Nanos(0), &write(n)).unwrap().at.0 < 500_000_000;
    (0..2048_u64).filter(|n| taken(&mut ssd, *n)).count()
}

#[test]
fn write_buffer_of_a_compressing_controller_holds_what_is_stored() {
    // 256 KiB: 64 units that do not compress, 512 units of one granule. What is on its way to a
    // die beside that leaves the buffer with its program.
    assert_eq!(taken_at_once(Content::Random), 64);
    assert_eq!(taken_at_once(Content::Stored(125)), 512);
    assert_eq!(taken_at_once(Content::Stored(500)), 128);
}

#[test]
fn flush_waits_for_flash_unless_the_cache_is_protected() {
    let flush_ns = |plp| {
        let mut ssd = ssd(|flash| flash.cache.plp = plp);
        let at = ssd.submit(Nanos(0), &Request::write(0, 4096)).unwrap().at;
        ssd.submit(at, &Request::flush()).unwrap().at.since(at).0
    };
    assert!(flush_ns(Plp::None) > 200_000);
    assert!(flush_ns(Plp::MapOnly) > 200_000);
    assert!(flush_ns(Plp::Full) < 100_000);
}

#[test]
fn suspend_shortens_reads_behind_programs_and_erases() {
    let mean_read = |suspend| {
        let mut ssd = ssd(|flash| flash.timing.suspend = suspend);
        let filled = drive(&mut ssd, Nanos(0), 8, 4_000, |n, _| Request::write(n * 4096, 4096));
        let (mut sum, mut reads) = (0, 0);
        let mut now = filled;
        let mut chance = Chance::new(1);
        for _ in 0..2_000 {
            let unit = |chance: &mut Chance| u64::from(chance.below(4_000)) * 4096;
            ssd.submit(now, &Request::write(unit(&mut chance), 4096)).unwrap();
            let read = ssd.submit(now, &Request::read(unit(&mut chance), 4096)).unwrap();
            sum += read.at.since(now).0;
            reads += 1;
            now = now + Nanos::from_micros(150);
        }
        sum / reads
    };
    let (none, both) =
        (mean_read(crate::Suspend::None), mean_read(crate::Suspend::ProgramAndErase));
    assert!(both < none, "{both} ns against {none} ns");
}

#[test]
fn energy_is_idle_energy_plus_work() {
    let mut ssd = ssd(|_| {});
    assert_eq!(ssd.stats(Nanos::from_secs(10)).energy_j, 5.0);
    let end = drive(&mut ssd, Nanos(0), 32, 4_000, |n, _| Request::write(n * 4096, 4096));
    let watts = ssd.stats(end).energy_j / end.as_secs_f64();
    assert!((2.4..2.6).contains(&watts), "all dies programming draw 2.5 W, not {watts}");
}

#[test]
fn worn_out_device_refuses_writes_and_still_reads() {
    let mut ssd = ssd(|flash| flash.endurance.cycles_mean = 3.0);
    let units = units(&ssd);
    let (mut now, mut chance) = (Nanos(0), Chance::new(1));
    let mut refused = false;
    for _ in 0..100_000 {
        let at = u64::from(chance.below(units)) * 4096;
        let completion = ssd.submit(now, &Request::write(at, 4096)).unwrap();
        now = completion.at;
        if completion.status == Status::WornOut {
            refused = true;
            break;
        }
    }
    assert!(refused, "blocks of 3 cycles outlived 100,000 writes");
    let again = ssd.submit(now, &Request::write(0, 4096)).unwrap();
    assert_eq!(again.status, Status::WornOut);
    let read = ssd.submit(again.at, &Request::read(0, 4096)).unwrap();
    assert_eq!(read.status, Status::Done);
}

#[test]
fn cut_loses_only_what_its_protection_allows() {
    // Eight writes, a flush, eight writes more; power goes right after the last is acknowledged.
    let cut = |plp, flush| {
        let mut ssd = ssd(|flash| {
            flash.cache.plp = plp;
            flash.cache.flush = flush;
        });
        let mut now = Nanos(0);
        for number in 0..16_u64 {
            if number == 8 {
                now = ssd.submit(now, &Request::flush()).unwrap().at;
            }
            now = ssd.submit(now, &Request::write(number * 4096, 4096)).unwrap().at;
        }
        let durable = ssd.durable_before(now);
        let report = ssd.power_cut(now, &mut Chance::new(1));
        assert!(report.damage.iter().all(|hit| hit.write.is_none_or(|write| write >= durable)));
        (durable, report.damage.iter().filter_map(|hit| hit.write).collect::<BTreeSet<_>>())
    };
    let ids = |range: std::ops::RangeInclusive<u64>| range.map(WriteId).collect::<BTreeSet<_>>();
    assert_eq!(cut(Plp::None, crate::Honesty::Honored), (WriteId(9), ids(9..=16)));
    assert_eq!(cut(Plp::Full, crate::Honesty::Honored), (WriteId(17), BTreeSet::new()));
    let (durable, lost) = cut(Plp::None, crate::Honesty::Ignored);
    assert!(durable == WriteId(1) && lost.contains(&WriteId(1)), "a device that lies loses more");
    let (_, lost) = cut(Plp::MapOnly, crate::Honesty::Honored);
    assert!(!lost.is_empty() && lost.first() >= Some(&WriteId(9)), "{lost:?}");
}

#[test]
fn map_changes_roll_back_only_with_an_unprotected_map() {
    let fates = |plp| {
        let mut ssd = ssd(|flash| flash.cache.plp = plp);
        for number in 0..64_u64 {
            ssd.submit(Nanos(number), &Request::write(number * 4096, 4096)).unwrap();
        }
        // Long enough for all programs, not for the map to be written by itself.
        let report = ssd.power_cut(Nanos::from_millis(50), &mut Chance::new(1));
        report.damage.iter().map(|hit| hit.fate).collect::<Vec<_>>()
    };
    assert_eq!(fates(Plp::None), vec![Fate::RolledBack; 64]);
    assert_eq!(fates(Plp::MapOnly), vec![]);
}

#[test]
fn interrupted_program_makes_its_paired_page_unreadable() {
    let mut ssd = ssd(|flash| {
        flash.cache.paired_pages = true;
        flash.cache.plp = Plp::MapOnly;
    });
    let mut now = Nanos(0);
    for number in 0..8_u64 {
        now = ssd.submit(now, &Request::write(number * 4096, 4096)).unwrap().at;
    }
    now = ssd.submit(now, &Request::flush()).unwrap().at;
    for number in 8..12_u64 {
        ssd.submit(now, &Request::write(number * 4096, 4096)).unwrap();
    }
    let report = ssd.power_cut(now + Nanos::from_micros(150), &mut Chance::new(1));
    let at_rest: Vec<u64> = report
        .damage
        .iter()
        .filter(|hit| hit.write.is_none())
        .map(|hit| hit.offset_bytes)
        .collect();
    assert!(!at_rest.is_empty(), "{report:?}");
    assert!(at_rest.iter().all(|offset| (4 * 4096..8 * 4096).contains(offset)), "{at_rest:?}");
    let on = ssd.power_on(now + Nanos::from_secs(1), &mut Chance::new(2)).ready_at;
    let read = ssd.submit(on, &Request::read(at_rest[0], 4096)).unwrap();
    let expected = Status::Unreadable { offset_bytes: at_rest[0], len_bytes: 4096 };
    assert_eq!(read.status, expected);
    let rewritten = ssd.submit(read.at, &Request::write(at_rest[0], 4096)).unwrap().at;
    assert_eq!(
        ssd.submit(rewritten, &Request::read(at_rest[0], 4096)).unwrap().status,
        Status::Done
    );
}

#[test]
fn impossible_requests_are_refused() {
    let mut ssd = ssd(|_| {});
    let capacity = ssd.identity().capacity_bytes;
    let beyond = ssd.submit(Nanos(5), &Request::read(capacity - 512, 1024)).unwrap_err();
    assert!(matches!(beyond, RequestError::OutOfRange { .. }), "{beyond}");
    let odd = ssd.submit(Nanos(5), &Request::write(100, 512)).unwrap_err();
    assert!(matches!(odd, RequestError::Misaligned { .. }));
    ssd.submit(Nanos(5), &Request::flush()).unwrap();
    let early = ssd.submit(Nanos(4), &Request::flush()).unwrap_err();
    assert!(matches!(early, RequestError::TimeRanBackwards { .. }));
    ssd.power_cut(Nanos(6), &mut Chance::new(1));
    let off = ssd.submit(Nanos(7), &Request::flush()).unwrap_err();
    assert!(matches!(off, RequestError::PoweredOff { .. }));
}

#[derive(Clone, Debug)]
enum Step {
    Write { sector: u64, sectors: u64, fua: bool },
    Read(u64),
    Trim(u64, u64),
    Flush,
    Wait(u64),
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..4000_u64, 1..40_u64, prop::bool::weighted(0.2))
            .prop_map(|(sector, sectors, fua)| Step::Write { sector, sectors, fua }),
        3 => (0..4000_u64).prop_map(Step::Read),
        1 => (0..4000_u64, 1..40_u64).prop_map(|(sector, sectors)| Step::Trim(sector, sectors)),
        2 => Just(Step::Flush),
        2 => (0..30_000_000_u64).prop_map(Step::Wait),
        1 => Just(Step::Cut),
    ]
}

/// A device with the history of its writes.
struct History {
    ssd: Ssd,
    plp: Plp,
    chance: Chance,
    now: Nanos,
    /// Bytes of each write.
    ranges: std::collections::BTreeMap<WriteId, std::ops::Range<u64>>,
    /// Writes that FUA or a flush made durable.
    durable: BTreeSet<WriteId>,
    completed: Vec<(Nanos, WriteId)>,
}

impl History {
    fn new(ssd: Ssd, plp: Plp, seed: u64) -> Self {
        let chance = Chance::new(seed);
        let (ranges, durable, completed) = Default::default();
        Self { ssd, plp, chance, now: Nanos(0), ranges, durable, completed }
    }

    fn step(&mut self, step: &Step) {
        let now = self.now;
        match step {
            Step::Write { sector, sectors, fua } => {
                let mut request = Request::write(sector * 512, sectors * 512)
                    .with(Content::Stored(1 + self.chance.below(1000) as u16));
                request.fua = *fua;
                let done = self.ssd.submit(now, &request).unwrap();
                self.ranges.insert(done.write, sector * 512..(sector + sectors) * 512);
                self.completed.push((done.at, done.write));
                if *fua {
                    self.now = done.at;
                    self.durable.insert(done.write);
                }
            }
            Step::Read(sector) => {
                self.ssd.submit(now, &Request::read(sector * 512, 512)).unwrap();
            }
            Step::Trim(sector, sectors) => {
                self.ssd.submit(now, &Request::trim(sector * 512, sectors * 512)).unwrap();
            }
            Step::Flush => {
                self.now = self.ssd.submit(now, &Request::flush()).unwrap().at;
                let covered = self.completed.iter().filter(|(at, _)| *at <= now);
                self.durable.extend(covered.map(|(_, write)| *write));
            }
            Step::Wait(ns) => self.now = now + Nanos(*ns),
            Step::Cut => self.cut(),
        }
        self.ssd.ftl().audit();
    }

    fn cut(&mut self) {
        let safe = self.ssd.durable_before(self.now);
        let report = self.ssd.power_cut(self.now, &mut self.chance);
        for hit in &report.damage {
            let write = hit.write.expect("no paired pages here");
            assert!(write >= safe, "{hit:?} though safe before {safe:?}");
            assert!(!self.durable.contains(&write), "{hit:?} was durable");
            let range = &self.ranges[&write];
            assert!(range.start <= hit.offset_bytes);
            assert!(hit.offset_bytes + hit.len_bytes <= range.end);
            if self.plp == Plp::Full {
                let acknowledged =
                    self.completed.iter().any(|&(at, id)| id == write && at <= self.now);
                assert!(!acknowledged, "{hit:?} was acknowledged");
            }
        }
        self.now = self.ssd.power_on(self.now + Nanos(1), &mut self.chance).ready_at;
    }
}

proptest! {
    /// An honest device never damages a durable write; every damaged range lies in its write;
    /// counts hold; the same history gives the same digest.
    #[test]
    fn durable_writes_survive_every_history(
        steps in prop::collection::vec(step(), 1..80),
        plp in prop_oneof![Just(Plp::None), Just(Plp::MapOnly), Just(Plp::Full)],
        superblock_dies in prop_oneof![Just(0_u32), Just(1), Just(2)],
        planes in 1..=2_u32,
        journal in prop_oneof![Just(0_u32), Just(7)],
        compresses: bool,
        seed: u64,
    ) {
        let run = || {
            let ssd = ssd(|flash| {
                flash.cache.plp = plp;
                flash.ftl.superblock_dies = superblock_dies;
                flash.geometry.planes_per_die = planes;
                flash.ftl.map_journal_units = journal;
                flash.controller.compression =
                    compresses.then(crate::CompressionSpec::default);
            });
            let mut history = History::new(ssd, plp, seed);
            steps.iter().for_each(|step| history.step(step));
            history.ssd.digest()
        };
        prop_assert_eq!(run(), run());
    }
}
