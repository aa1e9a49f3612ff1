//! Loads of the field on models, against formulas: open arrivals, skewed places, trims.

mod common;

use forebay_flash::DeviceSpec;
use forebay_lab::LabError;
use forebay_lab::load::{Arrivals, Load, Places};
use forebay_lab::timeline::{Phase, PhaseOutcome, Timeline};

use common::SERVER;

/// A flash device with one superblock die, so that its spare share is exact.
const FLASH: &str = r#"
name = "flash"
capacity_bytes = 268_435_456
interface = { kind = "nvme", bit_error_rate = 0 }
[media.flash.geometry]
channels = 1
dies_per_channel = 1
planes_per_die = 1
blocks_per_plane = 1283
pages_per_block = 64
page_bytes = 4096
[media.flash.timing]
read_us = 1
program_us = 5
erase_us = 5
[media.flash.ftl]
frontiers = "shared"
cleaning_pace = "whole"
"#;

fn run(device: &str, phases: Vec<Phase>) -> Result<PhaseOutcome, LabError> {
    let device: DeviceSpec = toml::from_str(device).expect("TOML");
    let timeline = Timeline { device, scale: 1, seed: 7, sample_minutes: 1.0, phases };
    Ok(timeline.run()?.phases.pop().expect("phases"))
}

/// Mean response in microseconds and requests a second.
fn response(pattern: Load) -> (f64, f64) {
    let phase = run(SERVER, vec![Phase::Load { minutes: 0.2, pattern }]).expect("runs");
    let whole = phase.whole.expect("a load");
    (whole.mean_ms * 1e3, whole.iops)
}

#[test]
fn open_arrivals_wait_as_queueing_theory_says() {
    let closed = |outstanding| Load { random_share: 1.0, outstanding, ..Load::default() };
    let (alone_us, _) = response(closed(1));
    let service_us = 1e6 / response(closed(32)).1;
    for share in [0.3, 0.6, 0.8] {
        let rate_s = share * 1e6 / service_us;
        for burst in [1, 4] {
            let arrivals = match burst {
                1 => Arrivals::Poisson { rate_s },
                _ => Arrivals::Bursts { rate_s, burst },
            };
            let (mean_us, iops) = response(Load { arrivals, ..closed(1) });
            // M/D/1, and with bursts M^[b]/D/1: a burst's members also wait for each other.
            let bursty = (f64::from(burst) - 1.0) / (2.0 * (1.0 - share));
            let queue = share / (2.0 * (1.0 - share)) + bursty;
            let expected = alone_us + service_us * queue;
            let off = (mean_us / expected - 1.0).abs();
            assert!(off < 0.03, "{share}, {burst}: {expected} µs expected, {mean_us} µs got");
            assert!((iops / rate_s - 1.0).abs() < 0.02, "{share}, {burst}: {iops} of {rate_s}");
        }
    }
}

/// Write amplification after the flash has come round, over the last pass.
fn amplification(load: Load) -> f64 {
    amplification_of(FLASH, load)
}

fn amplification_of(device: &str, load: Load) -> f64 {
    let warm = Phase::Passes { passes: 3.0, pattern: load.clone() };
    let fill = Phase::Fill { block_bytes: 1 << 20 };
    let phases = vec![fill, warm, Phase::Passes { passes: 1.0, pattern: load }];
    run(device, phases).expect("runs").whole.expect("a load").amplification
}

/// Greedy cleaning of uniform writes with blocks of 64 pages, `alpha` pages of flash for each page
/// in use: the mean-field equations, solved by bisection on the victim's live pages.
fn greedy(alpha: f64) -> f64 {
    const N: usize = 64;
    // Shares of blocks with i live pages are c/i above the victim's k, so that their sum is 1 and
    // their mean N/alpha; the write amplification is N/(N - v), v live pages in a victim.
    let mut best = (f64::MAX, 1.0);
    for k in 1..N {
        let harmonic: f64 = (k + 1..=N).map(|i| 1.0 / i as f64).sum();
        for step in 0..2000 {
            // g is the share k·f_k, from 0 to c.
            let ratio = step as f64 / 2000.0;
            let c = 1.0 / (harmonic + ratio / k as f64);
            let g = ratio * c;
            let off = (c * (N - k) as f64 + g - N as f64 / alpha).abs();
            if off < best.0 {
                let live = ((k as f64 - 1.0) * g + k as f64 * (c - g)) / c;
                best = (off, N as f64 / (N as f64 - live));
            }
        }
    }
    best.1
}

#[test]
fn trimmed_space_counts_as_spare() {
    let random = Load { random_share: 1.0, ..Load::default() };
    // Of 1283 blocks one is open and two are in reserve.
    let alpha = 1280.0 * 64.0 / 65_536.0;
    for trim_share in [0.0, 0.1, 0.3] {
        let got = amplification(Load { trim_share, ..random.clone() });
        // A place's last request was a write with chance 1-q: that share of places is in use.
        let expected = greedy(alpha / (1.0 - trim_share));
        let off = (got / expected - 1.0).abs();
        assert!(off < 0.02, "{trim_share} trimmed: {expected} expected, {got} got");
    }
}

#[test]
fn skewed_places_cost_more_where_moved_data_is_not_kept_apart() {
    // Greedy cleaning with one open block mixes hot and cold data, and the cold parts of blocks are
    // moved again and again. A second open block for moved data separates them.
    let apart = FLASH.replace("\"shared\"", "\"apart\"");
    let load = |places| Load { random_share: 1.0, places, ..Load::default() };
    let uniform = amplification(load(Places::Uniform));
    for places in [Places::Zipf { theta: 0.99 }, Places::HotCold { places: 0.1, requests: 0.9 }] {
        let (mixed, apart) = (amplification(load(places)), amplification_of(&apart, load(places)));
        assert!(mixed > 1.1 * uniform, "{places:?}: {uniform} uniform, {mixed} mixed");
        assert!(apart < 0.9 * mixed, "{places:?}: {mixed} mixed, {apart} apart");
    }
}

#[test]
fn impossible_loads_are_refused_with_their_field() {
    let good = Load { random_share: 1.0, ..Load::default() };
    let places = |places| Load { places, ..good.clone() };
    let arrivals = |arrivals| Load { arrivals, ..good.clone() };
    for (load, part) in [
        (places(Places::Zipf { theta: 0.0 }), "theta"),
        (places(Places::Zipf { theta: f64::NAN }), "theta"),
        (places(Places::HotCold { places: 1.0, requests: 0.5 }), "hot-cold.places"),
        (places(Places::HotCold { places: 0.5, requests: -0.1 }), "hot-cold.requests"),
        (arrivals(Arrivals::Poisson { rate_s: 0.0 }), "rate_s"),
        (arrivals(Arrivals::Poisson { rate_s: 1e12 }), "rate_s"),
        (arrivals(Arrivals::Bursts { rate_s: 10.0, burst: 0 }), "burst"),
        (Load { trim_share: 1.5, ..good.clone() }, "trim_share"),
    ] {
        let error = run(SERVER, vec![Phase::Load { minutes: 0.1, pattern: load }]);
        let error = error.expect_err("must refuse");
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(part), "{error}");
    }
}
