use super::*;
use crate::catalogue;
use crate::timeline::{Phase, Timeline};

mod real;

/// A trace of this test's own, removed with it.
struct TraceFile(PathBuf);

impl TraceFile {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("forebay-recorded-{name}-{}.csv", std::process::id());
        let path = std::env::temp_dir().join(name);
        files::replace(&path, text).expect("scratch");
        Self(path)
    }

    fn load(&self, pace: TracePace) -> Recorded {
        Recorded {
            file: self.0.clone(),
            format: None,
            pace,
            outstanding: 4,
            reads_only: false,
            wraps: false,
            digest: None,
        }
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// MSR's format: time in 100 ns, host, disk, kind, offset, bytes, response.
fn msr(requests: u64, gap_us: u64) -> String {
    (0..requests)
        .map(|i| {
            let kind = if i % 4 == 3 { "Read" } else { "Write" };
            let time = 128_166_372_003_061_629 + i * gap_us * 10;
            format!("{time},web,0,{kind},{},4096,0\n", (i * 7919 % 1000) * 4096)
        })
        .collect()
}

fn timeline(recorded: Recorded) -> Timeline {
    let device = catalogue::find("ddrdrive-x1").expect("built in").device;
    let phases = vec![Phase::Trace(recorded)];
    Timeline { device, scale: 0, seed: 9, sample_minutes: 0.001, phases }
}

#[test]
fn requests_arrive_at_the_times_of_the_trace() {
    let trace = TraceFile::new("pace", &msr(1000, 100));
    for (pace, seconds) in [(TracePace::Own, 0.0999), (TracePace::Times(2.0), 0.04995)] {
        let outcome = timeline(trace.load(pace)).run().expect("runs");
        let phase = &outcome.phases[0];
        let whole = phase.whole.expect("a load");
        // The last response is all that comes on top.
        let lasted = phase.to_minute * 60.0;
        assert!((seconds..seconds + 0.0001).contains(&lasted), "{pace:?}: {lasted} s");
        assert_eq!(whole.responses.writes.requests, 750);
        assert_eq!(whole.responses.reads.requests, 250);
        assert_eq!(phase.left_out, Some(LeftOut::default()));
        let (integrated, product) = phase.little.expect("a load");
        assert!((integrated / product - 1.0).abs() < 1e-6, "{integrated} against {product}");
        let counted: f64 = phase.samples.iter().map(|s| s.responses.writes.requests as f64).sum();
        assert_eq!(counted, 750.0, "samples tile the trace");
    }
}

#[test]
fn full_speed_keeps_as_many_outstanding_as_asked() {
    let trace = TraceFile::new("max", &msr(4000, 1000));
    let outcome = timeline(trace.load(TracePace::Max)).run().expect("runs");
    let (integrated, _) = outcome.phases[0].little.expect("a load");
    assert!((3.9..=4.0).contains(&integrated), "{integrated}");
    // Four at a time are far quicker than one a millisecond.
    assert!(outcome.phases[0].to_minute * 60.0 < 0.1);
}

#[test]
fn requests_that_do_not_fit_are_counted_or_folded() {
    let far = "128166372003061629,web,0,Write,1099511627776,4096,0\n";
    let odd = "128166372003061629,web,0,Write,100,4096,0\n";
    let trace = TraceFile::new("fold", &format!("{}{far}{odd}", msr(8, 1)));
    let run = |recorded| timeline(recorded).run().expect("runs").phases[0].clone();
    let refused = run(trace.load(TracePace::Own));
    let counts = LeftOut { beyond_end: 1, unaligned: 1, other: 0 };
    assert_eq!(refused.left_out, Some(counts));
    assert_eq!(refused.whole.expect("a load").responses.writes.requests, 6);
    let folded = run(Recorded { wraps: true, ..trace.load(TracePace::Own) });
    assert_eq!(folded.left_out, Some(LeftOut { unaligned: 1, ..LeftOut::default() }));
    assert_eq!(folded.whole.expect("a load").responses.writes.requests, 7);
    let reads = run(Recorded { reads_only: true, ..trace.load(TracePace::Own) });
    assert_eq!(reads.left_out, Some(LeftOut { other: 8, ..LeftOut::default() }));
}

#[test]
fn a_trace_that_is_not_whole_is_refused_and_lines_that_make_no_sense_are_counted() {
    let cut = TraceFile::new("cut", &format!("{}128166372003061629,web,0,Wr", msr(8, 1)));
    let error = timeline(cut.load(TracePace::Own)).run().expect_err("it was cut off");
    assert!(matches!(error, LabError::TraceDamaged { .. }), "{error}");
    assert!(error.exit_code() == 2 && !error.to_string().contains('\n'), "{error}");
    let unclear = TraceFile::new("unclear", &format!("{}1,web,0,Poem,0,4096,0\n", msr(8, 1)));
    let outcome = timeline(unclear.load(TracePace::Own)).run().expect("runs");
    let counts = LeftOut { other: 1, ..LeftOut::default() };
    assert_eq!(outcome.phases[0].left_out, Some(counts));
}

#[test]
fn changed_traces_and_impossible_loads_are_refused() {
    let trace = TraceFile::new("changed", &msr(100, 1));
    let mut noted = trace.load(TracePace::Own);
    noted.note_digest().expect("reads");
    timeline(noted.clone()).run().expect("the trace is the same");
    files::replace(&trace.0, &msr(101, 1)).expect("scratch");
    let error = timeline(noted).run().expect_err("the trace has changed");
    assert!(matches!(error, LabError::TraceChanged { .. }), "{error}");
    let missing = Recorded { file: "/nonexistent".into(), ..trace.load(TracePace::Own) };
    let no_format = Recorded { format: Some("poem".into()), ..trace.load(TracePace::Own) };
    for wrong in [
        missing,
        no_format,
        trace.load(TracePace::Times(0.0)),
        Recorded { outstanding: 0, ..trace.load(TracePace::Max) },
    ] {
        let error = timeline(wrong.clone()).run().expect_err("must refuse");
        assert!(error.exit_code() == 2 && !error.to_string().contains('\n'), "{wrong:?}: {error}");
    }
    let small = Timeline { scale: 8, ..timeline(trace.load(TracePace::Own)) };
    assert!(matches!(small.run(), Err(LabError::Field { field: "scale", .. })));
}
