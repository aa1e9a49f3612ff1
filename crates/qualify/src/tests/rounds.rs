//! Steady state, on and beside its limits.

use super::*;

#[test]
fn both_criteria_decide_and_the_limits_belong_to_them() {
    let reached = |values: &[f64]| steadiness(values).unwrap().is_reached;
    assert!(reached(&[100.0; 5]));
    // The range is 20 % of the mean, without a slope.
    assert!(reached(&[110.0, 90.0, 100.0, 90.0, 110.0]));
    assert!(!reached(&[110.1, 90.0, 100.0, 90.0, 110.1]), "range above 20 %");
    // The slope is 10 % of the mean over the window.
    assert!(reached(&[95.0, 97.5, 100.0, 102.5, 105.0]));
    assert!(!reached(&[94.9, 97.45, 100.0, 102.55, 105.1]), "slope above 10 %");
    assert!(!reached(&[105.1, 102.55, 100.0, 97.45, 94.9]), "falling counts as well");
    // Each point lies within 20 % of the mean, and yet the range is 40 %.
    assert!(!reached(&[120.0, 80.0, 100.0, 80.0, 120.0]));
}

#[test]
fn only_the_last_window_counts() {
    let values = [500.0, 300.0, 100.0, 100.0, 101.0, 99.0, 100.0];
    let steady = steadiness(&values).unwrap();
    assert!(steady.is_reached);
    assert_eq!(steady.rounds, 7);
    assert!((steady.mean_iops - 100.0).abs() < 1e-9);
    assert!((steady.range - 0.02).abs() < 1e-9);
}

#[test]
fn too_few_rounds_or_none_completed_are_no_verdict() {
    assert_eq!(steadiness(&[1.0; 4]), None);
    assert_eq!(steadiness(&[0.0; 5]), None);
}

#[test]
fn rounds_end_when_they_are_steady_and_a_falling_rate_never_is() {
    let steady = qualify(fakes::HONEST, Purpose::Zil, 1);
    let rounds = |run: &Qualification| {
        let find = |o: &&Outcome| matches!(o.kind, StepKind::SteadyState { .. });
        run.outcomes.iter().find(find).unwrap().clone()
    };
    let outcome = rounds(&steady);
    assert!(outcome.steadiness.unwrap().is_reached);
    assert_eq!(outcome.rounds.len(), WINDOW_ROUNDS);
    assert!(outcome.measured.samples.windows(2).all(|w| w[1].at_s > w[0].at_s));
}

#[test]
fn plan_keeps_its_promises() {
    for profile in Profile::ALL {
        let wanted = PlanFor {
            profile,
            purpose: Purpose::Zil,
            procedure: None,
            only: None,
            purge: None,
            size_bytes: 100 << 30,
            block_bytes: 512,
            read_only: false,
            sleeps: false,
            shrink: 1,
            seed: 1,
        };
        let plan = Plan::new(wanted).unwrap();
        let minutes = plan.limit().as_secs_f64() / 60.0;
        let (least, most) = match profile {
            Profile::Quick => (1.5, 2.5),
            Profile::Standard => (50.0, 80.0),
            Profile::Full => (20.0 * 60.0, 26.0 * 60.0),
        };
        assert!((least..most).contains(&minutes), "{}: {minutes} minutes", profile.name());
        assert!(plan.steps.iter().all(|s| s.job.span_bytes <= plan.span_bytes));
        let reads = Plan::new(PlanFor { read_only: true, ..wanted }).unwrap();
        assert_eq!(reads.max_bytes(), 0);
        assert!(reads.steps.iter().all(|s| s.job.read_percent == 100));
        let of_4k = Plan::new(PlanFor { block_bytes: 4096, ..wanted }).unwrap();
        assert!(of_4k.steps.iter().all(|s| s.job.offset_bytes == 0));
        let trial = Plan::new(PlanFor { shrink: 10, ..wanted }).unwrap();
        assert_eq!(trial.limit().0 / 1000, plan.limit().0 / 10_000);
    }
    let small = PlanFor {
        profile: Profile::Quick,
        purpose: Purpose::Zil,
        procedure: None,
        only: None,
        purge: None,
        size_bytes: 1 << 20,
        block_bytes: 512,
        read_only: false,
        sleeps: false,
        shrink: 1,
        seed: 1,
    };
    assert!(matches!(Plan::new(small), Err(PlanError::TooSmall { .. })));
}
