use super::*;
use proptest::prelude::*;

const GRID: &str = r#"
name = "depth"
task = "timeline"
[base]
device = "ocz-vertex-2-ex-50gb"
scale = 256
phases = ["secure-erase", { load = { minutes = 0.5, pattern = { random_share = 1.0 } } }]
[grid]
"device.unused_fraction" = [0.0, 0.1]
"phases.1.load.pattern.outstanding" = [1, 8, 32]
seed = [1, 2]
"#;

/// A directory of this test's own, removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("forebay-sweep-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        files::make_dir(&dir).expect("scratch");
        Self(dir)
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.0.join("grid.toml");
        files::replace(&path, text).expect("scratch");
        path
    }

    fn args(&self, file: &Path, shard: Option<&str>, merge: bool, out: &str) -> Args {
        Args {
            file: file.to_owned(),
            out: self.0.join(out),
            shard: shard.map(str::to_owned),
            merge,
            threads: Some(1),
            quiet: true,
        }
    }

    fn merged(&self, out: &str) -> Vec<u8> {
        files::read_if_there(&self.0.join(out).join("depth.jsonl")).expect("reads").expect("there")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn shards_merge_to_the_bytes_of_one_run_after_a_kill() {
    let s = Scratch::new("merge");
    let file = s.file(GRID);
    run(&s.args(&file, None, false, "whole")).expect("runs");
    run(&s.args(&file, None, true, "whole")).expect("merges");
    for shard in ["3/3", "1/3"] {
        run(&s.args(&file, Some(shard), false, "parts")).expect("runs");
    }
    let early = run(&s.args(&file, None, true, "parts")).expect_err("a part is missing");
    assert!(
        matches!(early, LabError::MissingPoints { missing: 4, total: 12, first: 1 }),
        "{early}"
    );
    // A kill tore the last line of the first part.
    let path = s.0.join("parts/depth.shard-1-of-3.jsonl");
    let bytes = files::read_if_there(&path).expect("reads").expect("there");
    let text = String::from_utf8(bytes[..bytes.len() - 40].to_vec()).expect("text");
    files::replace(&path, &text).expect("writes");
    for shard in ["1/3", "2/3"] {
        run(&s.args(&file, Some(shard), false, "parts")).expect("goes on");
    }
    run(&s.args(&file, None, true, "parts")).expect("merges");
    assert_eq!(s.merged("whole"), s.merged("parts"));
    assert_eq!(s.merged("whole").iter().filter(|b| **b == b'\n').count(), 12);
}

#[test]
fn finished_points_do_not_run_again() {
    let s = Scratch::new("resume");
    let file = s.file(GRID);
    run(&s.args(&file, None, false, "out")).expect("runs");
    let path = s.0.join("out/depth.shard-1-of-1.jsonl");
    let before = files::read_if_there(&path).expect("reads");
    run(&s.args(&file, None, false, "out")).expect("has nothing to do");
    assert_eq!(before, files::read_if_there(&path).expect("reads"));
}

#[test]
fn points_that_are_alike_run_and_merge() {
    let s = Scratch::new("alike");
    let file = s.file(&GRID.replace("seed = [1, 2]", "seed = [1, 1]"));
    run(&s.args(&file, None, false, "out")).expect("runs");
    let path = s.0.join("out/depth.shard-1-of-1.jsonl");
    let before = files::read_if_there(&path).expect("reads");
    run(&s.args(&file, None, false, "out")).expect("has nothing to do");
    assert_eq!(before, files::read_if_there(&path).expect("reads"));
    run(&s.args(&file, None, true, "out")).expect("merges");
    assert_eq!(places(&s.merged("out")), (0..12).collect::<Vec<_>>());
}

#[test]
fn a_grid_that_grew_merges_to_the_bytes_of_one_run() {
    let s = Scratch::new("grown");
    // Without the axis that comes first by name, and without the first seed.
    let small = GRID.replace("seed = [1, 2]", "seed = [2]");
    let small = small.replace("\"device.unused_fraction\" = [0.0, 0.1]\n", "");
    run(&s.args(&s.file(&small), None, false, "grown")).expect("runs");
    let file = s.file(GRID);
    for out in ["grown", "whole"] {
        run(&s.args(&file, None, false, out)).expect("runs");
        run(&s.args(&file, None, true, out)).expect("merges");
    }
    assert_eq!(s.merged("grown"), s.merged("whole"));
    assert_eq!(places(&s.merged("grown")), (0..12).collect::<Vec<_>>());
}

/// The places in the grid that merged lines give.
fn places(merged: &[u8]) -> Vec<u64> {
    let lines = std::str::from_utf8(merged).expect("text").lines();
    let of = |line| serde_json::from_str::<Value>(line).expect("JSON")["index"].as_u64();
    lines.map(|line| of(line).expect("a number")).collect()
}

#[test]
fn malformed_sweeps_are_refused_in_one_line() {
    let s = Scratch::new("bad");
    for (from, to) in [
        ("\"device.unused_fraction\" = [0.0, 0.1]", "\"device.color\" = [1]"),
        ("\"device.unused_fraction\" = [0.0, 0.1]", "\"device.no.such\" = [1]"),
        ("phases.1.load", "phases.9.load"),
        ("[0.0, 0.1]", "[]"),
        ("task = \"timeline\"", "task = \"poem\""),
        ("name = \"depth\"", "name = \"a/b\""),
        ("vertex-2-ex-50gb", "vertex-9"),
        ("[grid]", "[grit]"),
        ("scale = 256", "scale = -1"),
    ] {
        assert!(GRID.contains(from), "{from}");
        let file = s.file(&GRID.replace(from, to));
        let error = run(&s.args(&file, None, false, "out")).expect_err(to);
        assert!(error.exit_code() == 2 && !error.to_string().contains('\n'), "{to}: {error}");
    }
    let file = s.file(&GRID.replace("minutes = 0.5", "minutes = -5"));
    let error = run(&s.args(&file, None, false, "out")).expect_err("negative time");
    assert!(matches!(&error, LabError::Field { field: "load.minutes", .. }), "{error}");
    for shard in ["0/3", "4/3", "x", "1/0", "-1/2"] {
        let file = s.file(GRID);
        assert!(run(&s.args(&file, Some(shard), false, "out")).is_err(), "{shard}");
    }
}

proptest! {
    #[test]
    fn each_point_is_in_one_shard(points in 0usize..200, parts in 1usize..20) {
        let mut taken = vec![0; points];
        for part in 0..parts {
            let text = format!("{}/{parts}", part + 1);
            let (i, n) = shard_of(Some(&text)).expect("valid");
            for index in (0..points).filter(|p| p % n == i) {
                taken[index] += 1;
            }
        }
        prop_assert!(taken.iter().all(|n| *n == 1));
    }
}
