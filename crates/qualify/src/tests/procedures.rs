//! Published procedures: their steps, and what they show of devices whose nature is known.

use super::*;

fn procedure(procedure: Procedure, shrink: u32) -> Plan {
    Plan::new(PlanFor {
        profile: Profile::Quick,
        purpose: Purpose::Forebay,
        procedure: Some(procedure),
        only: None,
        purge: None,
        size_bytes: 40 << 30,
        block_bytes: 512,
        read_only: false,
        sleeps: false,
        shrink,
        seed: 1,
    })
    .unwrap()
}

#[test]
fn procedures_have_the_published_loads_and_times() {
    let minutes = |plan: &Plan, kind: fn(&StepKind) -> bool| {
        let all = plan.steps.iter().filter(|s| kind(&s.kind));
        all.map(|s| s.limit().as_secs_f64() / 60.0).collect::<Vec<f64>>()
    };
    let plan = procedure(Procedure::Ddrdrive2010, 1);
    assert_eq!(plan.span_bytes, 40 << 30, "the whole device");
    let is_first =
        |k: &StepKind| matches!(k, StepKind::Procedure { stage: Stage::FirstSecond, .. });
    let is_load =
        |k: &StepKind| matches!(k, StepKind::Procedure { stage: Stage::Fresh | Stage::Rested, .. });
    assert_eq!(minutes(&plan, is_load), [60.0; 12]);
    assert_eq!(minutes(&plan, |k| *k == StepKind::Idle), [60.0; 6]);
    assert_eq!(minutes(&plan, is_first), [1.0 / 60.0; 6]);
    let loads = plan.steps.iter().filter(|s| is_load(&s.kind));
    assert!(loads.clone().all(|s| s.job.queue_depth == 64 && s.job.block_bytes == 4096));
    assert!(loads.clone().all(|s| s.job.sample_ns == 60_000_000_000));
    assert_eq!(loads.filter(|s| s.job.offset_bytes == 512).count(), 6);
    let plan = procedure(Procedure::Ddrdrive2012, 1);
    assert_eq!(minutes(&plan, is_load), [80.0]);
    assert!(plan.steps.iter().all(|s| s.job.queue_depth == 32));
    let plan = procedure(Procedure::Review2015, 1);
    assert_eq!(plan.steps[0].max_bytes(), plan.span_bytes, "filled once");
    let shares: Vec<u8> = plan.steps[1..].iter().map(|s| s.job.read_percent).collect();
    assert_eq!(shares, [100, 80, 60, 40, 20, 0, 100, 80, 60, 40, 20, 0]);
    assert!(plan.steps[1..7].iter().all(|s| s.job.queue_depth == 3));
    assert!(plan.steps[1..7].iter().all(|s| s.job.span_bytes <= 16_000_000_000));
    assert!(plan.steps[7..].iter().all(|s| s.job.span_bytes == 40 << 30));
}

/// The run of the procedure of 2010 on a device of this nature.
fn run_2010(nature: Nature) -> Qualification {
    let plan = Plan::new(PlanFor {
        profile: Profile::Quick,
        purpose: Purpose::Forebay,
        procedure: Some(Procedure::Ddrdrive2010),
        only: None,
        purge: None,
        size_bytes: SIZE_BYTES,
        block_bytes: 512,
        read_only: false,
        sleeps: false,
        shrink: 1000,
        seed: 1,
    })
    .unwrap();
    let steps = plan.steps.clone();
    let outcomes = Runtime::simulated(1).block_on(async move {
        let device: Device = Rc::new(Fake::new(nature, SIZE_BYTES, 1));
        let mut outcomes = Vec::new();
        for step in &steps {
            outcomes.push(run_step(&device, step, 1, &Silent).await);
        }
        outcomes
    });
    of_outcomes(conditions(&nature), plan, outcomes)
}

#[test]
fn first_second_without_a_write_is_unknown() {
    let mut run = run_2010(fakes::HONEST);
    let is_first =
        |o: &&mut Outcome| matches!(o.kind, StepKind::Procedure { stage: Stage::FirstSecond, .. });
    run.outcomes.iter_mut().filter(is_first).for_each(|o| o.measured.requests = 0);
    let results = results(&[run], "test 1");
    let shown = results.experiments.iter().find(|e| e.id == "procedure").unwrap();
    let first = &shown.tables[0].rows[0][1].value;
    assert!(matches!(first, forebay_report::Value::Unknown(())), "{first:?}");
    assert!(shown.findings[0].text.contains("unknown in the first second"));
}

#[test]
fn degradation_and_misalignment_show_in_the_turning_points() {
    let nature =
        Nature { misaligned_factor: 2.0, degrades: Some((100 << 20, 3.0)), ..fakes::HONEST };
    let run = run_2010(nature);
    assert_eq!(run.judge().answer, Answer::Undecided, "a procedure does not judge");
    let results = results(&[run], "test 1");
    let shown = results.experiments.iter().find(|e| e.id == "procedure").unwrap();
    assert!(results.experiments[0].tables.is_empty(), "no table without figures");
    assert_eq!(shown.charts.len(), 6);
    assert!(shown.charts.iter().all(|c| c.bands.len() == 1));
    // Rest from minute 60 to 120, and the load goes on to minute 180.
    let band = &shown.charts[0].bands[0];
    assert_eq!((band.from, band.to), (60.0, 120.0));
    let end = shown.charts[0].series[0].points.last().unwrap();
    let forebay_report::X::Number(end) = end.x else { panic!("a number") };
    assert!((179.0..181.5).contains(&end), "{end}");
    // The line has a gap there, and no rise from the load before to the load behind.
    for chart in &shown.charts {
        let gaps = chart.series[0].points.iter().filter(|p| p.y.is_none());
        assert_eq!(gaps.map(|p| &p.x).collect::<Vec<_>>(), [&forebay_report::X::Number(60.0)]);
    }
    let value = |row: usize, column: usize| {
        let forebay_report::Value::Number(n) = shown.tables[0].rows[row][column].value else {
            panic!("a number")
        };
        n
    };
    // Sequential writes: fresh at first; worn from then on, and rest does not help.
    assert!(value(0, 2) < 0.5 * value(0, 1), "{} {}", value(0, 1), value(0, 2));
    assert!((0.8..1.2).contains(&(value(0, 3) / value(0, 2))));
    // Beside the grid half as fast: the loads of both tables' halves are equally worn.
    let ratio = value(2, 4) / value(5, 4);
    assert!((1.7..2.3).contains(&ratio), "{ratio}");
    // Little's law: 64 in flight.
    let in_flight = value(2, 4) * value(2, 5) / 1e3;
    assert!((50.0..80.0).contains(&in_flight), "{in_flight}");
}

/// The run of a procedure on a device of this nature; needless steps are passed over.
fn run_whole(wanted: Procedure, nature: Nature, shrink: u32) -> Qualification {
    let plan = Plan::new(PlanFor {
        profile: Profile::Quick,
        purpose: Purpose::Forebay,
        procedure: Some(wanted),
        only: None,
        purge: None,
        size_bytes: SIZE_BYTES,
        block_bytes: 512,
        read_only: false,
        sleeps: false,
        shrink,
        seed: 1,
    })
    .unwrap();
    let given = plan.clone();
    let outcomes = Runtime::simulated(1).block_on(async move {
        let device: Device = Rc::new(Fake::new(nature, SIZE_BYTES, 1));
        let observer = Below::default();
        let mut outcomes = Vec::new();
        for step in &given.steps {
            outcomes.push(match given.needs(step, &outcomes) {
                true => run_step(&device, step, 1, &observer).await,
                false => Outcome::needless(step),
            });
        }
        outcomes
    });
    of_outcomes(conditions(&nature), plan, outcomes)
}

/// Devices below, which write three bytes for each one since the last look.
#[derive(Default)]
struct Below(std::cell::Cell<u64>);

impl Observer for Below {
    fn goes_on(&self, _: Progress) -> bool {
        true
    }
    fn below(&self) -> Option<Traffic> {
        self.0.set(self.0.get() + 1);
        Some(Traffic { read_bytes: 1 << 20, written_bytes: self.0.get() << 20 })
    }
}

fn chapter(run: &Qualification, id: &str) -> forebay_report::Experiment {
    let mut all = results(std::slice::from_ref(run), "test 1").experiments;
    all.retain(|e| e.id == id);
    assert_eq!(all.len(), 1, "the chapter {id}");
    all.remove(0)
}

#[test]
fn snia_tests_have_the_specified_mixes_sizes_and_limits() {
    let plan = procedure(Procedure::SniaPts, 1);
    let is_round =
        |s: &&Step, of: PtsTest| matches!(s.kind, StepKind::PtsRound { test, .. } if test == of);
    for (test, cells, depth) in [(PtsTest::Iops, 56, 32), (PtsTest::Latency, 9, 1)] {
        let rounds: Vec<&Step> = plan.steps.iter().filter(|s| is_round(s, test)).collect();
        assert_eq!(rounds.len(), 25);
        assert!(rounds.iter().all(|s| s.limit().as_secs_f64() == 60.0 * f64::from(cells)));
        assert!(rounds.iter().all(|s| s.job.queue_depth == depth && s.job.random_percent == 100));
    }
    let only = |kind: StepKind| plan.steps.iter().find(|s| s.kind == kind).unwrap();
    let saturation = only(StepKind::Saturation);
    assert_eq!(saturation.max_bytes(), 4 * plan.span_bytes);
    assert_eq!(saturation.limit().as_secs_f64(), 86_400.0);
    assert_eq!(only(StepKind::Precondition).max_bytes(), 2 * plan.span_bytes);
    // Each test begins on a discarded device.
    assert_eq!(plan.steps.iter().filter(|s| s.kind == StepKind::Discard).count(), 3);
    let large = Plan::new(PlanFor {
        profile: Profile::Quick,
        purpose: Purpose::Forebay,
        procedure: Some(Procedure::SniaPts),
        only: None,
        purge: None,
        size_bytes: 40 << 30,
        block_bytes: 4096,
        read_only: false,
        sleeps: false,
        shrink: 1,
        seed: 1,
    });
    let large = large.unwrap();
    let round = large.steps.iter().find(|s| is_round(s, PtsTest::Iops)).unwrap();
    assert_eq!(round.limit().as_secs_f64(), 60.0 * 49.0, "no requests of half a block");
}

#[test]
fn rounds_end_when_they_are_steady_and_the_tables_are_of_the_last_five() {
    let run = run_whole(Procedure::SniaPts, fakes::HONEST, 1000);
    let done = |test| {
        let is_done = |o: &&Outcome| {
            let is_of = matches!(o.kind, StepKind::PtsRound { test: of, .. } if of == test);
            is_of && o.measured.ended != Ended::Needless
        };
        run.outcomes.iter().filter(is_done).count()
    };
    assert_eq!((done(PtsTest::Iops), done(PtsTest::Latency)), (5, 5), "it is steady at once");
    assert!(run.outcomes.iter().all(Outcome::is_whole));
    let shown = chapter(&run, "pts-iops");
    assert!(shown.findings[0].text.contains("reached after 5 rounds"), "{:?}", shown.findings);
    let table = &shown.tables[0];
    assert_eq!((table.rows.len(), table.columns.len()), (8, 8));
    let value = |row: usize, column: usize| {
        let forebay_report::Value::Number(n) = table.rows[row][column].value else {
            panic!("a number: {:?}", table.rows[row][column])
        };
        n
    };
    // 4 KiB writes of four channels of 0.48 ms each, as the device's nature has them.
    let rate = value(6, 7);
    assert!((6_500.0..10_500.0).contains(&rate), "{rate}");
    let latency = chapter(&run, "pts-latency");
    assert_eq!((latency.tables.len(), latency.tables[0].rows.len()), (2, 3));
    let written = &chapter(&run, "saturation").findings[0].text;
    assert!(written.contains("times the capacity"), "{written}");
}

#[test]
fn rounds_that_never_get_steady_are_a_result() {
    let wanders = Some((forebay_units::Nanos::from_millis(700), 95));
    let run = run_whole(Procedure::SniaPts, Nature { wanders, ..fakes::HONEST }, 1000);
    let rounds = |test| {
        let is_of =
            |o: &&Outcome| matches!(o.kind, StepKind::PtsRound { test: of, .. } if of == test);
        run.outcomes.iter().filter(is_of).filter(|o| !o.cells.is_empty()).count()
    };
    assert_eq!(rounds(PtsTest::Iops), 25);
    assert!(!pts_steadiness(&run.outcomes, PtsTest::Iops).unwrap().is_reached);
    let text = &chapter(&run, "pts-iops").findings[0].text;
    assert_eq!(text, "steady state not reached after 25 rounds");
}

#[test]
fn comparison_of_engines_has_depths_clients_and_wear() {
    let run = run_whole(Procedure::Ess2013, fakes::HONEST, 1000);
    let depths: Vec<u32> = run
        .plan
        .steps
        .iter()
        .filter(|s| matches!(s.kind, StepKind::Reads { .. }))
        .map(|s| s.job.queue_depth)
        .collect();
    assert_eq!(depths, [1, 10, 100, 1000]);
    let shown = chapter(&run, "engines");
    let ids: Vec<&str> = shown.charts.iter().map(|c| c.id.as_str()).collect();
    assert_eq!(ids, ["fill", "reads", "writes"]);
    let number = |table: usize, row: usize, column: usize| {
        let forebay_report::Value::Number(n) = shown.tables[table].rows[row][column].value else {
            panic!("a number")
        };
        n
    };
    let (writes, clients) = (number(0, 1, 2), number(0, 1, 3));
    assert_eq!(clients, (writes / 100.0).floor(), "100 writes a second each");
    assert_eq!(shown.tables[1].rows.len(), 8, "512 bytes to 64 KiB");
    // A MiB below in each step.
    let (usable, below, wear) = (number(1, 3, 1), number(1, 3, 3), number(1, 3, 4));
    assert!((below / usable - wear).abs() < 1e-9, "{below} {usable} {wear}");
    assert_eq!(number(1, 3, 2), 0.0, "nothing was read below");
}
