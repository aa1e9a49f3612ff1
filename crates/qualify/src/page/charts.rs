//! Charts of qualifications, one line for each run.

use forebay_report::{Axis, Band, Chart, ChartKind, Experiment, Point, Role, Series};

use super::{Shown, chart, experiment, said};
use crate::content::CONTENT_TURNS;
use crate::detect::whole;
use crate::plan::{DIRTY_BLOCKS, QUEUE_DEPTHS, READ_PERCENTS};
use crate::steady::WINDOW_ROUNDS;
use crate::{
    Content, Detector, Latency, Outcome, Pattern, Qualification, Sign, StepKind, Sync, findings,
};

/// All chapters of charts; a chart without a point is left out.
pub(super) fn experiments(shown: &[Shown<'_>]) -> Vec<Experiment> {
    let mut all = vec![
        durable_writes(shown),
        sustained(shown),
        steady_state(shown),
        flushes(shown),
        content_and_alignment(shown),
        mixed_reads(shown),
        reads(shown),
    ];
    for experiment in &mut all {
        for chart in &mut experiment.charts {
            chart.series.retain(|series| !series.points.is_empty());
        }
        experiment.charts.retain(|chart| !chart.series.is_empty());
    }
    all
}

fn series(name: String, of: &Shown<'_>, is_dashed: bool, points: Vec<Point>) -> Series {
    let role = if of.is_model() { Role::Simulated } else { Role::Measured };
    Series { name, group: of.name.clone(), role, dashed: is_dashed, points }
}

fn sync_name(sync: Sync) -> &'static str {
    match sync {
        Sync::None => "not durable",
        Sync::Flush => "write + flush",
        Sync::Fua => "FUA or O_DSYNC",
    }
}

fn sync_outcome(run: &Qualification, sync: Sync, queue_depth: u32) -> Option<&Outcome> {
    whole(&run.outcomes, StepKind::SyncWrites { sync, queue_depth })
}

/// Points of the percentiles that are known: one request in so many takes longer.
fn percentile_points(latency: &Latency) -> Vec<Point> {
    let known = latency.percentiles();
    let known = known.iter().filter_map(|(_, share, ns)| ns.map(|ns| (*share, ns)));
    known.map(|(share, ns)| Point::at((1.0 / (1.0 - share)).round(), ns as f64 / 1e3)).collect()
}

fn durable_writes(shown: &[Shown<'_>]) -> Experiment {
    let question = "How long does a durable write take, and how many are there a second?";
    let mut e = experiment(shown, "durable-writes", "Durable writes", question);
    let caption = "A percentile is shown only when at least one request lies beyond it.";
    let mut tails = chart(&e, "percentiles", "Response times at QD1", caption);
    tails.x = Axis::log("One request in so many takes longer", "");
    tails.y = Axis::log("Response", "µs");
    let mut rates = chart(&e, "rates", "Durable writes by queue depth", "");
    rates.x = Axis::log("Requests in flight", "");
    rates.y = Axis::linear("Durable writes", "1/s");
    let mut slow = chart(&e, "p99", "99th percentile by queue depth", "");
    (slow.x, slow.y) = (rates.x.clone(), Axis::log("p99", "µs"));
    for of in shown {
        for sync in [Sync::Flush, Sync::Fua] {
            let text = durable_text(of.run, sync);
            e.findings.extend(text.map(|text| of.finding(said(shown, of, &text))));
            let name = said(shown, of, sync_name(sync));
            let is_dashed = sync == Sync::Fua;
            let one = sync_outcome(of.run, sync, 1);
            let points = one.map(|o| percentile_points(&o.measured.latency)).unwrap_or_default();
            tails.series.push(series(name.clone(), of, is_dashed, points));
            let all = || {
                QUEUE_DEPTHS.iter().filter_map(|&qd| Some((qd, sync_outcome(of.run, sync, qd)?)))
            };
            let rate = all().map(|(qd, o)| Point::at(f64::from(qd), o.measured.iops()));
            rates.series.push(series(name.clone(), of, is_dashed, rate.collect()));
            let p99 = all().filter_map(|(qd, o)| {
                Some(Point::at(f64::from(qd), o.measured.latency.p99_ns? as f64 / 1e3))
            });
            slow.series.push(series(name, of, is_dashed, p99.collect()));
        }
    }
    e.charts.extend([tails, rates, slow]);
    e
}

/// What a method gets at QD1, and at its best.
fn durable_text(run: &Qualification, sync: Sync) -> Option<String> {
    let one = sync_outcome(run, sync, 1)?;
    let latency = &one.measured.latency;
    let micros = |ns: u64| format!("{:.0} µs", ns as f64 / 1e3);
    let times = [("p50", latency.p50_ns), ("p99", latency.p99_ns)];
    let times = times.into_iter().filter_map(|(name, ns)| Some(format!("{name} {}", micros(ns?))));
    let mut text = format!("{} at QD1: {:.0} a second", sync_name(sync), one.measured.iops());
    times.for_each(|time| text.push_str(&format!(", {time}")));
    let rates = QUEUE_DEPTHS.iter().filter_map(|&queue_depth| {
        Some((queue_depth, sync_outcome(run, sync, queue_depth)?.measured.iops()))
    });
    let best = rates.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(queue_depth, _)| *queue_depth > 1);
    if let Some((queue_depth, rate)) = best {
        text.push_str(&format!("; {rate:.0} at QD{queue_depth}"));
    }
    Some(text)
}

fn sustained(shown: &[Shown<'_>]) -> Experiment {
    let question = "Does the write rate hold?";
    let mut e = experiment(shown, "sustained", "Sustained 4 KiB writes", question);
    e.method = "32 in flight, pseudo-random data, not made durable.".to_owned();
    for pattern in [Pattern::Sequential, Pattern::Mixed, Pattern::Random] {
        let title = format!("4 KiB writes, {}", pattern.name());
        let mut lines = chart(&e, pattern.name().replace(' ', "-").as_str(), &title, "");
        lines.x = Axis::linear("Time", "s");
        lines.y = Axis::linear("Writes", "1/s");
        for of in shown {
            let outcome = whole(&of.run.outcomes, StepKind::Sustained { pattern });
            let samples = outcome.map(|o| o.measured.samples.as_slice()).unwrap_or_default();
            let points = samples.iter().map(|s| Point::at(s.at_s, s.iops)).collect();
            lines.series.push(series(of.name.clone(), of, false, points));
        }
        e.charts.push(lines);
    }
    for of in shown {
        let rate = |pattern: Pattern| {
            let outcome = whole(&of.run.outcomes, StepKind::Sustained { pattern })?;
            Some(format!("{} {:.0}", pattern.name(), outcome.measured.iops()))
        };
        let rates = [Pattern::Sequential, Pattern::Mixed, Pattern::Random];
        let rates: Vec<String> = rates.into_iter().filter_map(rate).collect();
        if !rates.is_empty() {
            let text = format!("writes a second: {}", rates.join(", "));
            e.findings.push(of.finding(said(shown, of, &text)));
        }
    }
    e
}

fn rounds_of(run: &Qualification) -> Option<&Outcome> {
    run.outcomes.iter().find(|o| matches!(o.kind, StepKind::SteadyState { .. }))
}

fn steady_state(shown: &[Shown<'_>]) -> Experiment {
    let question = "Does the device reach a steady state, as SNIA defines it?";
    let mut e = experiment(shown, "steady-state", "Steady state", question);
    e.method = "Rounds of random 4 KiB writes. Over five rounds the range is at most 20 % of the \
                mean, and the fitted line changes by at most 10 % of it."
        .to_owned();
    let caption = "The window is the last five rounds.";
    let mut lines = chart(&e, "rounds", "Random 4 KiB writes by round", caption);
    lines.x = Axis::linear("Round", "");
    lines.y = Axis::linear("Writes", "1/s");
    for of in shown {
        let Some(outcome) = rounds_of(of.run) else { continue };
        let points: Vec<Point> = (1..)
            .zip(&outcome.rounds)
            .map(|(at, round)| Point::at(f64::from(at), round.iops))
            .collect();
        let count = points.len();
        lines.series.push(series(of.name.clone(), of, false, points));
        let Some(steady) = outcome.steadiness else { continue };
        let word = if steady.is_reached { "reached" } else { "not reached" };
        let text = format!(
            "steady state {word} after {} rounds: mean {:.0}/s, range {:.1} %, slope {:.1} %",
            steady.rounds,
            steady.mean_iops,
            steady.range * 100.0,
            steady.slope * 100.0
        );
        e.findings.push(of.finding(said(shown, of, &text)));
        if shown.len() == 1 {
            let from = (count + 1 - WINDOW_ROUNDS) as f64;
            let label = format!("window: {word}");
            lines.bands.push(Band { from, to: count as f64, label });
        }
    }
    e.charts.push(lines);
    e
}

/// A bar chart over names, with one series a run.
fn bars(
    shown: &[Shown<'_>],
    mut into: Chart,
    value: impl Fn(&Qualification) -> Vec<(String, Option<f64>)>,
) -> Chart {
    into.kind = ChartKind::Bar;
    for of in shown {
        let known = value(of.run).into_iter().filter(|(_, value)| value.is_some());
        let points = known.map(|(name, value)| Point::named(name, value)).collect();
        into.series.push(series(of.name.clone(), of, false, points));
    }
    into
}

fn flushes(shown: &[Shown<'_>]) -> Experiment {
    let question = "Does a flush cost time, as it must where a cache is volatile?";
    let mut e = experiment(shown, "flushes", "Flushes", question);
    let caption = "Medians at QD1. Timing raises a suspicion; only a power cut is proof.";
    let mut into = chart(&e, "cost", "A plain write, and flushes behind writes", caption);
    into.y = Axis::log("Median", "µs");
    let value = |run: &Qualification| {
        let p50 = |kind| Some(whole(&run.outcomes, kind)?.measured.latency.p50_ns? as f64 / 1e3);
        let mut values = vec![("plain write".to_owned(), p50(StepKind::PlainWrites))];
        values.extend(DIRTY_BLOCKS.map(|dirty_blocks| {
            let value = p50(StepKind::FlushCost { dirty_blocks });
            (format!("flush after {dirty_blocks}"), value)
        }));
        values
    };
    e.charts.push(bars(shown, into, value));
    add_findings(&mut e, shown, &[Detector::IgnoredFlush]);
    e
}

/// What detectors found, as findings of their chapter.
fn add_findings(e: &mut Experiment, shown: &[Shown<'_>], detectors: &[Detector]) {
    for of in shown.iter().filter(|of| of.run.plan.procedure.is_none()) {
        let found = findings(&of.run.conditions, &of.run.outcomes).into_iter();
        let wanted = found.filter(|f| detectors.contains(&f.detector) && f.sign != Sign::Open);
        e.findings.extend(wanted.map(|f| of.finding(said(shown, of, &f.text))));
    }
}

/// The mean rate of the turns of a step.
fn turns(run: &Qualification, kind_of: impl Fn(u32) -> StepKind) -> Option<f64> {
    let turns = (0..CONTENT_TURNS).filter_map(|turn| whole(&run.outcomes, kind_of(turn)));
    let rates: Vec<f64> = turns.map(|o| o.measured.iops()).collect();
    (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
}

fn content_and_alignment(shown: &[Shown<'_>]) -> Experiment {
    let question = "Does the rate depend on what is written, or on where a partition begins?";
    let mut e = experiment(shown, "content", "Content and alignment", question);
    e.method = "Random 4 KiB writes, 32 in flight; the loads alternate.".to_owned();
    let mut into = chart(&e, "rates", "Random 4 KiB writes", "");
    into.y = Axis::linear("Writes", "1/s");
    let value = |run: &Qualification| {
        let content = |content| turns(run, |turn| StepKind::Content { content, turn });
        let aligned = |is_aligned| turns(run, |turn| StepKind::Alignment { is_aligned, turn });
        let contents = [Content::PseudoRandom, Content::Half, Content::Repeating];
        let mut values = contents.map(|c| (c.name().to_owned(), content(c))).to_vec();
        values.push(("on the 4 KiB grid".to_owned(), aligned(true)));
        values.push(("512 B beside it".to_owned(), aligned(false)));
        values
    };
    e.charts.push(bars(shown, into, value));
    add_findings(&mut e, shown, &[Detector::Compression, Detector::Misalignment]);
    e
}

/// Throughput of a mix, in MB/s.
fn mix_mb_per_s(run: &Qualification, block_bytes: u32, read_percent: u8) -> Option<f64> {
    let kind = StepKind::MixedReads { block_bytes, read_percent };
    Some(whole(&run.outcomes, kind)?.measured.bytes_per_s() / 1e6)
}

/// The mean of the six mixes, as the review of 2015 compares drives.
fn mean_of_mixes(run: &Qualification, block_bytes: u32) -> Option<f64> {
    let all = READ_PERCENTS.map(|percent| mix_mb_per_s(run, block_bytes, percent));
    let known: Vec<f64> = all.into_iter().flatten().collect();
    (known.len() == all.len()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

fn mixed_reads(shown: &[Shown<'_>]) -> Experiment {
    let question = "What do reads and writes together get?";
    let mut e = experiment(shown, "mixed", "Reads and writes mixed", question);
    let sweeps = [(4096, "4 KiB at random places, QD3"), (128 << 10, "128 KiB in order, QD1")];
    for (block_bytes, title) in sweeps {
        let mut lines = chart(&e, &format!("mixed-{}k", block_bytes >> 10), title, "");
        lines.x = Axis::linear("Reads", "%");
        lines.y = Axis::linear("Throughput", "MB/s");
        for of in shown {
            let mut shares = READ_PERCENTS;
            shares.sort_unstable();
            let at = |read_percent: u8| {
                let value = mix_mb_per_s(of.run, block_bytes, read_percent)?;
                Some(Point::at(f64::from(read_percent), value))
            };
            let points = shares.into_iter().filter_map(at).collect();
            lines.series.push(series(of.name.clone(), of, false, points));
        }
        e.charts.push(lines);
    }
    let mut means = chart(&e, "means", "Mean of the six mixes", "");
    means.y = Axis::linear("Throughput", "MB/s");
    let value = |run: &Qualification| {
        let mean =
            |(block_bytes, title): (u32, &str)| (title.to_owned(), mean_of_mixes(run, block_bytes));
        sweeps.map(mean).to_vec()
    };
    e.charts.push(bars(shown, means, value));
    for of in shown {
        let known = value(of.run)
            .into_iter()
            .filter_map(|(title, mean)| Some(format!("{title}: {:.1} MB/s", mean?)));
        let text = known.collect::<Vec<_>>().join("; ");
        if !text.is_empty() {
            let text = format!("mean of the six mixes: {text}");
            e.findings.push(of.finding(said(shown, of, &text)));
        }
    }
    e
}

fn reads(shown: &[Shown<'_>]) -> Experiment {
    let mut e = experiment(shown, "reads", "Random reads", "How fast are 4 KiB reads?");
    let mut lines = chart(&e, "rates", "Random 4 KiB reads by queue depth", "");
    lines.x = Axis::log("Requests in flight", "");
    lines.y = Axis::linear("Reads", "1/s");
    // The comparison of engines has its reads in a chapter of its own.
    for of in shown.iter().filter(|of| of.run.plan.procedure.is_none()) {
        let at = |&queue_depth: &u32| {
            let outcome = whole(&of.run.outcomes, StepKind::Reads { queue_depth })?;
            Some(Point::at(f64::from(queue_depth), outcome.measured.iops()))
        };
        let points = QUEUE_DEPTHS.iter().filter_map(at).collect();
        lines.series.push(series(of.name.clone(), of, false, points));
    }
    e.charts.push(lines);
    e
}
