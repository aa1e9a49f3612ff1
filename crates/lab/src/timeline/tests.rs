use super::*;
use crate::catalogue;
use crate::responses::range_edge_ms;

fn timeline(phases: Vec<Phase>) -> Timeline {
    let device = catalogue::find("ocz-vertex-2-ex-50gb").expect("built in").device;
    Timeline { device, scale: 256, seed: 9, sample_minutes: 1.0, phases }
}

fn random() -> Load {
    Load { random_share: 1.0, ..Load::default() }
}

#[test]
fn samples_tile_the_time_and_obey_littles_law() {
    let load = Phase::Load { minutes: 12.5, pattern: random() };
    let out = timeline(vec![Phase::SecureErase, load.clone(), Phase::Idle { minutes: 5.0 }, load])
        .run()
        .expect("runs");
    let counts: Vec<usize> = out.phases.iter().map(|p| p.samples.len()).collect();
    // Half a minute left over makes a sample of its own only when it is not less than half.
    assert_eq!(counts, [0, 12, 5, 12]);
    let ends: Vec<f64> = out.samples().map(|s| s.minute).collect();
    assert!(ends.windows(2).all(|w| w[0] < w[1]), "{ends:?}");
    for phase in out.phases.iter().filter(|p| p.whole.is_some()) {
        let (integrated, product) = phase.little.expect("a load");
        assert!((integrated / product - 1.0).abs() < 1e-6, "{integrated} against {product}");
        let (outstanding, depth) = phase.outstanding.expect("a load");
        assert!((outstanding / f64::from(depth) - 1.0).abs() < 1e-6, "{outstanding}");
        let whole = phase.whole.expect("a load");
        let outstanding = whole.iops * whole.mean_ms / 1000.0;
        assert!((outstanding / 32.0 - 1.0).abs() < 0.01, "{outstanding}");
    }
    assert!(out.utilization > 0.0 && out.utilization <= 1.0);
}

#[test]
fn histogram_of_each_sample_has_its_requests_and_median() {
    let pattern = Load { read_share: 0.3, ..random() };
    let out = timeline(vec![Phase::Load { minutes: 4.0, pattern }]).run().expect("runs");
    let phase = &out.phases[0];
    assert_eq!(phase.histograms.len(), phase.samples.len());
    for (sample, counts) in phase.samples.iter().zip(&phase.histograms) {
        let responses = sample.responses;
        for (counts, times) in
            [(&counts.reads, responses.reads), (&counts.writes, responses.writes)]
        {
            let all: u64 = counts.iter().map(|(_, count)| count).sum();
            assert_eq!(all, times.requests);
            let mut below = 0;
            let median = counts.iter().find(|(_, count)| {
                below += count;
                below * 2 >= all
            });
            let (range, _) = median.expect("requests");
            let at_ms = times.at_ms[0].expect("a median");
            let (low, high) = (range_edge_ms(*range), range_edge_ms(range + 1));
            assert!((low * 0.99..=high * 1.01).contains(&at_ms), "{low} {at_ms} {high}");
        }
    }
}

#[test]
fn passes_end_after_their_bytes() {
    let out = timeline(vec![Phase::Passes { passes: 0.5, pattern: random() }]).run().expect("runs");
    let device = catalogue::find("ocz-vertex-2-ex-50gb").expect("built in").device;
    let share = out.written_bytes / device.capacity_bytes as f64;
    assert!((share - 0.5).abs() < 0.01, "{share}");
}

#[test]
fn outcome_follows_from_task_and_seed() {
    let one = timeline(vec![Phase::Load { minutes: 5.0, pattern: random() }]);
    assert_eq!(one.run().expect("runs"), one.run().expect("runs"));
    let other = Timeline { seed: 10, ..one.clone() };
    assert_ne!(one.run().expect("runs").digest, other.run().expect("runs").digest);
}

#[test]
fn out_of_range_phases_are_refused_in_one_line() {
    let load = |minutes| Phase::Load { minutes, pattern: random() };
    for phases in [
        vec![],
        vec![load(-1.0)],
        vec![load(0.0)],
        vec![load(f64::NAN)],
        vec![load(1e9)],
        vec![Phase::Idle { minutes: -3.0 }],
        vec![Phase::Fill { block_bytes: 100 }],
        vec![Phase::Passes { passes: -1.0, pattern: random() }],
    ] {
        let error = timeline(phases.clone()).run().expect_err("must refuse");
        assert!(error.exit_code() == 2 && !error.to_string().contains('\n'), "{phases:?}: {error}");
    }
}
