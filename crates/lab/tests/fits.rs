//! The fitted devices against the figures printed for them. The text of each check says whether
//! it is what a number was fitted to or what follows; docs/device-models.md has the same lists.

#![allow(clippy::disallowed_methods)] // It removes the files that the lab writes.

use forebay_lab::catalogue::{self, Page};
use forebay_lab::load::{Content, Load};
use forebay_lab::simulate::{Args, DEFAULT_SEED, results_of};
use forebay_lab::timeline::{Phase, Timeline, TimelineOutcome};
use forebay_report::Basis;

/// Quick enough for every test run; full size differs by less than the tolerance.
const SCALE: u32 = 32;

fn page(id: &str) -> Page {
    catalogue::find(id).expect("built in")
}

fn run(page: &Page, phases: Vec<Phase>) -> TimelineOutcome {
    let (device, seed) = (page.device.clone(), 20_260_901);
    let timeline = Timeline { device, scale: SCALE, seed, sample_minutes: 1.0, phases };
    timeline.run().expect("runs")
}

/// Procedure A without its hour of rest.
fn procedure_a(page: &Page, minutes: f64, pattern: Load) -> TimelineOutcome {
    let pattern = Load { outstanding: 32, workers: 2, ..pattern };
    run(page, vec![Phase::SecureErase, Phase::Load { minutes, pattern }])
}

fn assert_near(what: &str, printed: f64, got: f64, tolerance: f64) {
    let off = (got - printed).abs() / printed;
    assert!(off <= tolerance, "{what}: {printed} printed, {got} got, {:.1} % off", off * 100.0);
}

#[test]
fn vertex_2_pro_meets_the_printed_row() {
    // Fitted: the blocks cleaning can use, to the writes a second. Throughput and response follow.
    let pattern = Load { random_share: 0.5, ..Load::default() };
    let end = procedure_a(&page("ocz-vertex-2-pro-50gb"), 120.0, pattern).sustained(5.0);
    assert_near("IOPS", 3252.45, end.iops, 0.05);
    assert_near("MiB/s", 12.70, end.mib_s, 0.05);
    assert_near("mean response", 19.6793, end.mean_ms, 0.05);
}

#[test]
fn vertex_2_ex_meets_the_printed_row() {
    let pattern = Load { random_share: 0.5, align_bytes: 512, ..Load::default() };
    let end = procedure_a(&page("ocz-vertex-2-ex-50gb"), 120.0, pattern).sustained(5.0);
    assert_near("IOPS", 5460.44, end.iops, 0.05);
    assert_near("MiB/s", 21.33, end.mib_s, 0.05);
    assert_near("mean response", 11.7224, end.mean_ms, 0.05);
}

#[test]
fn vertex_2_slows_within_ten_minutes_and_stays_slow_after_rest() {
    // Predicted: nothing was adjusted to either.
    for id in ["ocz-vertex-2-ex-50gb", "ocz-vertex-2-pro-50gb"] {
        let pattern = Load { random_share: 1.0, outstanding: 32, workers: 2, ..Load::default() };
        let load = Phase::Load { minutes: 60.0, pattern };
        let idle = Phase::Idle { minutes: 60.0 };
        let out = run(&page(id), vec![Phase::SecureErase, load.clone(), idle, load]);
        let at = |phase: usize, minute: usize| out.phases[phase].samples[minute - 1].iops;
        let fresh = at(1, 1);
        assert!(at(1, 10) < 0.7 * fresh, "{id}: {} of {fresh} at ten minutes", at(1, 10));
        let (before, after) = (at(1, 60), at(3, 5));
        assert!(after < 1.05 * before, "{id}: {before} before rest, {after} after");
        assert!(after < 0.5 * fresh, "{id}: {after} of {fresh} after rest");
    }
}

#[test]
fn misaligned_writes_are_slower_and_compressible_data_faster() {
    // Predicted.
    let ex = page("ocz-vertex-2-ex-50gb");
    let rate = |pattern: Load| procedure_a(&ex, 60.0, pattern).sustained(5.0).iops;
    let random = Load { random_share: 1.0, ..Load::default() };
    let aligned = rate(random.clone());
    let misaligned = rate(Load { align_bytes: 512, ..random.clone() });
    assert!(misaligned < 0.8 * aligned, "{misaligned} against {aligned}");
    let repeating = rate(Load { content: Content::Repeating, ..random });
    assert!(repeating > 2.0 * aligned, "{repeating} against {aligned}");
    let sequential = rate(Load::default());
    let sequential_512 = rate(Load { align_bytes: 512, ..Load::default() });
    assert_near("sequential, 512 B grid", sequential, sequential_512, 0.01);
}

#[test]
fn dram_rate_does_not_depend_on_the_load() {
    // Fitted: 300,000 operations of 512 bytes a second. Everything else follows.
    let x1 = page("ddrdrive-x1");
    let rate = |pattern: Load| procedure_a(&x1, 20.0, pattern).sustained(5.0).iops;
    let small = Load { block_bytes: 512, align_bytes: 512, random_share: 1.0, ..Load::default() };
    assert_near("512-byte operations", 300_000.0, rate(small), 0.05);
    let first = rate(Load::default());
    for pattern in [
        Load { random_share: 0.5, ..Load::default() },
        Load { random_share: 1.0, align_bytes: 512, ..Load::default() },
        Load { random_share: 1.0, content: Content::Repeating, ..Load::default() },
    ] {
        assert_near("any load", first, rate(pattern), 0.01);
    }
    let out = procedure_a(&x1, 20.0, Load { random_share: 1.0, ..Load::default() });
    for sample in out.samples() {
        assert_near("any minute", out.fresh().iops, sample.iops, 0.01);
    }
}

#[test]
fn intel_320_and_710_meet_their_ratings() {
    // Fitted: the controller's command time, on the 300 GB model, to 23,000 after secure erase.
    let pattern = Load { random_share: 1.0, ..Load::default() };
    let load = |minutes| Phase::Load { minutes, pattern: pattern.clone() };
    let fresh = |id| {
        let device = page(id).device;
        let phases = vec![Phase::SecureErase, load(1.0)];
        let t = Timeline { device, scale: 128, seed: 1, sample_minutes: 1.0, phases };
        t.run().expect("runs").fresh().iops
    };
    assert_near("320 300 GB", 23_000.0, fresh("intel-320-300gb"), 0.05);
    // Predicted: fewer dies, and nothing else.
    assert_near("320 80 GB", 10_000.0, fresh("intel-320-80gb"), 0.30);
    assert_near("320 40 GB", 3_700.0, fresh("intel-320-40gb"), 0.30);
    // Fitted: 16 KiB units and random victims to an amplification near 12, program time to 2,700.
    let passes = Phase::Passes { passes: 2.0, pattern };
    let phases = vec![Phase::SecureErase, Phase::Fill { block_bytes: 128 << 10 }, passes];
    let device = page("intel-710-200gb").device;
    let t = Timeline { device, scale: 160, seed: 1, sample_minutes: 10.0, phases };
    let out = t.run().expect("runs");
    let end = out.sustained(200.0);
    assert_near("710 200 GB", 2_700.0, end.iops, 0.05);
    assert_near("710 amplification", 12.0, end.amplification, 0.25);
}

/// Modern drives against rates that no number of their models was chosen by.
#[test]
fn modern_drives_meet_their_checking_data() {
    let scratch = std::env::temp_dir().join(format!("forebay-fits-{}", std::process::id()));
    let devices =
        ["samsung-pm9a3-1920gb", "kioxia-cm7-r-1920gb", "samsung-980-1tb", "intel-p4800x-375gb"];
    let args = Args {
        devices: devices.map(str::to_owned).to_vec(),
        out: scratch.clone(),
        seed: Some(DEFAULT_SEED),
        json: true,
        scale: Some(1024),
        ..Args::default()
    };
    let results = results_of(&args, "figures").expect("runs");
    std::fs::remove_dir_all(&scratch).expect("what was kept is there");
    let checks = &results.experiments[0].checks;
    let published: Vec<_> = checks.iter().filter(|c| c.basis == Basis::Published).collect();
    for device in devices {
        let name = page(device).device.name;
        assert!(published.iter().any(|check| check.name.starts_with(&name)), "{name}");
    }
    assert!(published.len() >= 11, "{}", published.len());
    for check in checks.iter().filter(|c| c.tolerance > 0.1) {
        assert!(check.pass, "{}: {} printed, {} got", check.name, check.expected, check.got);
    }
}
