//! Each detector on devices whose nature is known, and the published table of hits.

use super::fakes::natures;
use super::*;

const RUNS: u64 = 5;

/// What a perfect detector answers.
fn is_true(nature: &Nature, detector: Detector) -> bool {
    match detector {
        Detector::IgnoredFlush => nature.is_volatile && nature.lies,
        Detector::Compression => nature.compression > 1.0,
        Detector::Misalignment => nature.misaligned_factor > 1.0,
        // The limit of the detector is a fifth.
        Detector::Degradation => nature.degrades.is_some_and(|(_, factor)| factor > 1.25),
        Detector::Throttling => nature.throttles.is_some(),
        Detector::Memory => nature.name.starts_with("DRAM"),
    }
}

/// The table of docs/qualify.md: hits of so many runs; bold where the device has the property.
#[test]
fn table_of_hits_and_false_alarms_is_the_published_one() {
    let mut table = String::from("| device |");
    for detector in Detector::ALL {
        table.push_str(&format!(" {} |", detector.name()));
    }
    table.push_str(&format!("\n|{}\n", "---|".repeat(Detector::ALL.len() + 1)));
    let mut wrong = Vec::new();
    for nature in natures() {
        let runs: Vec<_> = (0..RUNS).map(|seed| qualify(nature, Purpose::Zil, seed)).collect();
        table.push_str(&format!("| {} |", nature.name));
        for detector in Detector::ALL {
            let is_hit = |run: &&Qualification| {
                let all = findings(&run.conditions, &run.outcomes);
                all.iter().any(|f| f.detector == detector && f.sign == Sign::Hit)
            };
            let hits = runs.iter().filter(is_hit).count() as u64;
            let wanted = if is_true(&nature, detector) { RUNS } else { 0 };
            let cell = format!("{hits} of {RUNS}");
            table.push_str(&if wanted > 0 {
                format!(" **{cell}** |")
            } else {
                format!(" {cell} |")
            });
            if hits != wanted {
                wrong.push(format!("{}, {}: {cell}", nature.name, detector.name()));
            }
        }
        table.push('\n');
    }
    let page = include_str!("../../../../docs/qualify.md");
    assert!(page.contains(&table), "docs/qualify.md must have this table:\n{table}\n{wrong:?}");
    assert!(wrong.is_empty(), "misses or false alarms: {wrong:?}\n{table}");
}

fn finding_of(run: &Qualification, detector: Detector) -> Finding {
    let all = findings(&run.conditions, &run.outcomes);
    all.into_iter().find(|f| f.detector == detector).unwrap()
}

#[test]
fn free_flush_is_judged_by_what_is_known_of_the_cache() {
    let mut run = qualify(Nature { lies: true, ..fakes::HONEST }, Purpose::Forebay, 1);
    assert_eq!(finding_of(&run, Detector::IgnoredFlush).sign, Sign::Hit);
    let reasons = |run: &Qualification| run.judge().reasons;
    let is_open = |r: &Reason| matches!(r, Reason::Open(text) if text.contains("suspicion"));
    let is_against = |r: &Reason| matches!(r, Reason::Against(text) if text.contains("suspicion"));
    assert!(reasons(&run).iter().any(is_open), "unknown protection leaves it open");
    run.conditions.protection = Some(Protection::MapOnly);
    assert!(reasons(&run).iter().any(is_against), "nothing protects the data");
    run.conditions.protection = Some(Protection::UserData);
    assert_eq!(finding_of(&run, Detector::IgnoredFlush).sign, Sign::Clear);
    run.conditions.protection = None;
    run.conditions.write_cache = Some(WriteCache::Durable);
    assert_eq!(finding_of(&run, Detector::IgnoredFlush).sign, Sign::Clear);
    run.conditions.write_cache = None;
    assert_eq!(finding_of(&run, Detector::IgnoredFlush).sign, Sign::Hit);
}

#[test]
fn refused_flush_is_a_hit_and_no_failed_request() {
    let run = qualify(Nature { refuses_flush: true, ..fakes::HONEST }, Purpose::Zil, 1);
    assert_eq!(finding_of(&run, Detector::IgnoredFlush).sign, Sign::Hit);
    let verdict = run.judge();
    assert_ne!(verdict.answer, Answer::Fit);
    let failed = |r: &Reason| matches!(r, Reason::Against(text) if text.contains("failed"));
    assert!(!verdict.reasons.iter().any(failed), "{verdict:?}");
}

#[test]
fn half_compressible_data_is_written_between_the_other_two() {
    let text = |compression| {
        let run = qualify(Nature { compression, ..fakes::HONEST }, Purpose::Forebay, 1);
        finding_of(&run, Detector::Compression).text
    };
    assert!(text(2.0).contains("half compressible data 1.5"), "{}", text(2.0));
    assert!(text(1.0).contains("half compressible data 1.0"), "{}", text(1.0));
}

#[test]
fn turns_that_differ_more_than_the_limit_leave_the_answer_open() {
    let mut run = qualify(fakes::HONEST, Purpose::Forebay, 1);
    // Rates of the five turns: two of the repeating byte between three of pseudo-random data.
    let mut sign_of = |rates: [u64; 5]| {
        for outcome in &mut run.outcomes {
            if let StepKind::Content { turn, .. } = outcome.kind {
                let rate = rates.get(turn as usize).copied().unwrap_or(100);
                (outcome.measured.requests, outcome.measured.seconds) = (rate, 1.0);
            }
        }
        finding_of(&run, Detector::Compression).sign
    };
    assert_eq!(sign_of([100, 101, 99, 100, 102]), Sign::Clear);
    assert_eq!(sign_of([100, 150, 102, 149, 99]), Sign::Hit);
    assert_eq!(sign_of([100, 200, 400, 300, 100]), Sign::Open, "noise hides a difference");
    assert_eq!(sign_of([100, 300, 400, 300, 100]), Sign::Open, "noise makes a difference");
    assert_eq!(sign_of([100, 50, 140, 60, 100]), Sign::Clear, "slower, whatever the noise");
}

#[test]
fn missing_steps_leave_detectors_and_verdict_open() {
    let mut run = qualify(fakes::HONEST, Purpose::Etcd, 1);
    assert_eq!(run.judge().answer, Answer::Fit, "{:?}", run.judge());
    let all = std::mem::take(&mut run.outcomes);
    assert_eq!(run.judge().answer, Answer::Undecided);
    for finding in findings(&run.conditions, &run.outcomes) {
        assert_eq!(finding.sign, Sign::Open, "{finding:?}");
    }
    // A step that was stopped is not done.
    run.outcomes = all;
    run.outcomes.last_mut().unwrap().measured.ended = Ended::Stopped;
    assert_eq!(run.judge().answer, Answer::Undecided);
}

#[test]
fn slow_device_is_not_fit_and_the_limit_is_named() {
    let slow = Nature { write_ns: 4_000_000, ..fakes::HONEST };
    let verdict = qualify(slow, Purpose::Forebay, 1).judge();
    assert_eq!(verdict.answer, Answer::Unfit);
    let Reason::Against(text) = &verdict.reasons[0] else { panic!("{verdict:?}") };
    assert!(text.contains("at least 5000 1/s is wanted"), "{text}");
}

#[test]
fn report_has_every_figure_and_tells_runs_apart() {
    let runs = [qualify(fakes::HONEST, Purpose::Zil, 1), qualify(fakes::HONEST, Purpose::Zil, 2)];
    let both = results(&runs, "test 1");
    let ids: Vec<&str> = both.experiments.iter().map(|e| e.id.as_str()).collect();
    for id in ["verdict", "difference", "durable-writes", "steady-state", "mixed", "conditions"] {
        assert!(ids.contains(&id), "{id} of {ids:?}");
    }
    let names: Vec<&str> = both
        .experiments
        .iter()
        .flat_map(|e| &e.charts)
        .filter(|c| c.id == "rounds")
        .flat_map(|c| &c.series)
        .map(|s| s.name.as_str())
        .collect();
    assert_eq!(names, ["honest drive #1", "honest drive #2"]);
    assert_eq!(
        forebay_report::from_json(&forebay_report::to_json(&both)).unwrap().title,
        both.title
    );
    // The page begins with the answer of each run, and why.
    let advice: Vec<&str> = both.experiments[0].advice.iter().map(|f| f.text.as_str()).collect();
    assert_eq!(advice.len(), 2);
    let (begin, why) =
        ("honest drive #1: not fit as a log device for zil", "durable writes a second");
    assert!(advice[0].starts_with(begin) && advice[0].contains(why), "{advice:?}");
    // Each chapter answers its question in a sentence.
    for chapter in both.experiments.iter().filter(|e| e.id != "conditions") {
        assert!(!chapter.findings.is_empty(), "{}", chapter.id);
    }
    let table = comparison(&runs[0], &runs[1]);
    assert!(table.rows.len() > 14);
    assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
}

#[test]
fn life_is_an_interval_and_a_durable_write_has_a_price_when_inputs_are_known() {
    let mut run = qualify(fakes::HONEST, Purpose::Forebay, 1);
    let endurance = |run: &Qualification| {
        let all = results(std::slice::from_ref(run), "test 1").experiments;
        all.into_iter().find(|e| e.id == "endurance").unwrap()
    };
    let unknown = endurance(&run);
    assert!(unknown.charts.is_empty() && unknown.tables.is_empty());
    assert!(unknown.findings[0].text.contains("--rated-tb"), "{:?}", unknown.findings);
    run.conditions.rated_bytes = Some(1e15);
    run.conditions.price_usd = Some(500.0);
    let known = endurance(&run);
    let point = &known.charts[0].series[0].points[0];
    let (low, high) = (point.low.unwrap(), point.high.unwrap());
    assert!(0.0 < low && low < high && point.y == Some(low), "{point:?}");
    let at = |queue_depth| {
        let kind = StepKind::SyncWrites { sync: Sync::Fua, queue_depth };
        run.outcomes.iter().find(|o| o.kind == kind).unwrap().measured.clone()
    };
    let longest = 1e15 / at(1).bytes_per_s() / 86_400.0;
    assert!((high / longest - 1.0).abs() < 1e-9, "QD1 is the slowest: {high}, {longest}");
    let row = &known.tables[0].rows[0];
    let best = crate::plan::QUEUE_DEPTHS.map(|depth| at(depth).iops());
    let best = best.into_iter().fold(0.0, f64::max);
    assert_eq!(row[7], forebay_report::Cell::number(500.0 / best * 1e3));
}
