//! Write amplification of the translation layer against formulas and an independent simulation.
//!
//! `data/wa_oracle*.csv` say what each column is. T counts closed blocks only, as in
//! `FtlConfig::textbook`. The default run checks a few rows of each kind; the ignored tests check
//! all: `cargo test --release -p forebay-flash --test oracle -- --ignored --nocapture`.

use forebay_flash::{Chance, CleaningPolicy, Ftl, FtlConfig};

const WITHIN: f64 = 0.01;

/// A device of `blocks` closed blocks under uniform random single-unit writes.
struct Run {
    ftl: Ftl,
    chance: Chance,
}

impl Run {
    fn new(blocks: u32, pages: u32, spare: f64, policy: CleaningPolicy) -> Self {
        let units = (f64::from(blocks * pages) * (1.0 - spare)).round() as u32;
        let mut ftl = Ftl::new(FtlConfig::textbook(units, blocks, pages, policy), 42);
        for unit in 0..units {
            ftl.write(unit, 1, 0, &mut ()).unwrap();
        }
        Self { ftl, chance: Chance::new(4242) }
    }

    fn overwrite(&mut self, writes: u64) {
        let units = self.ftl.config().units;
        for _ in 0..writes {
            let unit = self.chance.below(units);
            self.ftl.write(unit, 1, 0, &mut ()).unwrap();
        }
    }

    /// Write amplification over `measured` device writes after `warm` ones.
    fn steady(&mut self, warm: u64, measured: u64) -> f64 {
        let units = u64::from(self.ftl.config().units);
        self.overwrite(warm * units);
        let before = self.ftl.counters();
        self.overwrite(measured * units);
        let after = self.ftl.counters();
        let host = (after.host_units - before.host_units) as f64;
        (host + (after.moved_units - before.moved_units) as f64) / host
    }
}

/// Compares and remembers the worst; prints each row so that a run is a record.
#[derive(Default)]
struct Verdict {
    rows: u32,
    worst: f64,
    failures: Vec<String>,
}

impl Verdict {
    fn check(&mut self, what: &str, expected: f64, measured: f64) {
        let off = measured / expected - 1.0;
        let line =
            format!("{what}: expected {expected:.4}, got {measured:.4} ({:+.2} %)", off * 1e2);
        println!("{line}");
        self.rows += 1;
        self.worst = self.worst.max(off.abs());
        if off.abs() > WITHIN {
            self.failures.push(line);
        }
    }

    fn finish(self, name: &str) {
        println!("{name}: {} comparisons, worst {:.2} %", self.rows, self.worst * 1e2);
        assert!(self.rows > 0, "{name}: nothing was compared");
        assert!(self.failures.is_empty(), "{name}: off by more than 1 %:\n{:#?}", self.failures);
    }
}

fn rows(csv: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    csv.lines().filter(|line| !line.starts_with('#')).skip(1).map(|line| line.split(',').collect())
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text:?}"))
}

struct Uniform {
    spare: f64,
    pages: u32,
    random: f64,
    fifo: f64,
    greedy: f64,
    /// Blocks and write amplification of an independent simulation, where there is one.
    simulated: Option<(u32, f64)>,
}

fn uniform_rows() -> Vec<Uniform> {
    let parse = |row: Vec<&str>| Uniform {
        // alpha has more digits than the printed spare factor.
        spare: 1.0 - 1.0 / number(row[1]),
        pages: number(row[3]) as u32,
        random: number(row[4]),
        fifo: number(row[6]),
        greedy: number(row[8]),
        simulated: (!row[9].is_empty()).then(|| (number(row[9]) as u32, number(row[10]))),
    };
    let parsed: Vec<Uniform> = rows(include_str!("data/wa_oracle.csv")).map(parse).collect();
    assert_eq!(parsed.len(), 104);
    parsed
}

/// Blocks enough that a finite device is within a fraction of a percent of the limit.
fn blocks_for(pages: u32) -> u32 {
    ((1 << 19) / pages).clamp(4096, 16384)
}

fn check_greedy(row: &Uniform, blocks: u32, verdict: &mut Verdict) {
    let spare = row.spare;
    let wa = Run::new(blocks, row.pages, spare, CleaningPolicy::Greedy).steady(6, 2);
    verdict.check(&format!("greedy Sf {spare:.4} N {}", row.pages), row.greedy, wa);
    if let Some((blocks, simulated)) = row.simulated {
        let wa = Run::new(blocks, row.pages, spare, CleaningPolicy::Greedy).steady(6, 2);
        let what = format!("greedy Sf {spare:.4} N {} against a simulation", row.pages);
        verdict.check(&what, simulated, wa);
    }
}

fn check_fifo(row: &Uniform, blocks: u32, verdict: &mut Verdict) {
    let wa = Run::new(blocks, row.pages, row.spare, CleaningPolicy::Fifo).steady(8, 2);
    verdict.check(&format!("fifo Sf {:.4} N {}", row.spare, row.pages), row.fifo, wa);
}

fn check_random(row: &Uniform, blocks: u32, verdict: &mut Verdict) {
    // A random victim holds the mean share of live data from the first on: no need to settle.
    let wa = Run::new(blocks, row.pages, row.spare, CleaningPolicy::Random).steady(1, 2);
    verdict.check(&format!("random Sf {:.4} N {}", row.spare, row.pages), row.random, wa);
}

struct Extra {
    case: &'static str,
    blocks: u32,
    pages: u32,
    spare: f64,
    param: &'static str,
    simulated: f64,
    theory: Option<f64>,
    used: Option<f64>,
}

fn extra_rows() -> Vec<Extra> {
    let optional = |text: &str| (!text.is_empty()).then(|| number(text));
    let parse = |row: Vec<&'static str>| Extra {
        case: row[0],
        blocks: number(row[1]) as u32,
        pages: number(row[2]) as u32,
        spare: number(row[3]),
        param: row[4].split('=').next_back().unwrap_or(""),
        simulated: number(row[5]),
        theory: optional(row[6]),
        used: optional(row[8]),
    };
    let parsed: Vec<Extra> = rows(include_str!("data/wa_oracle_extra.csv")).map(parse).collect();
    assert_eq!(parsed.len(), 44);
    parsed
}

fn check_extra(row: &Extra, verdict: &mut Verdict) {
    let what = format!("{} {}x{} Sf {} {}", row.case, row.blocks, row.pages, row.spare, row.param);
    if row.case == "greedy+TRIM" {
        return check_trim(row, &what, verdict);
    }
    let policy = match row.case {
        "d-choices" => CleaningPolicy::DChoices(number(row.param) as u32),
        "fifo" => CleaningPolicy::Fifo,
        "random victim" => CleaningPolicy::Random,
        "greedy finite blocks" => CleaningPolicy::Greedy,
        other => panic!("no such case: {other}"),
    };
    // Few blocks: a longer run, or chance shows.
    let measured = if row.blocks < 1024 { 200 } else { 4 };
    let wa = Run::new(row.blocks, row.pages, row.spare, policy).steady(12, measured);
    verdict.check(&format!("{what} against a simulation"), row.simulated, wa);
    // The finite cases give the limit of endless blocks as theory: not what they should meet.
    if let Some(theory) = row.theory.filter(|_| row.case != "greedy finite blocks") {
        verdict.check(&format!("{what} against theory"), theory, wa);
    }
}

/// A share `q` of requests trims a unit in use, the others write any unit.
fn check_trim(row: &Extra, what: &str, verdict: &mut Verdict) {
    let q = number(row.param);
    let mut run = Run::new(row.blocks, row.pages, row.spare, CleaningPolicy::Greedy);
    let units = run.ftl.config().units;
    let mut in_use: Vec<u32> = (0..units).collect();
    let mut place: Vec<u32> = (0..units).collect();
    let (warm, measured) = (10 * u64::from(units), 6 * u64::from(units));
    let mut before = run.ftl.counters();
    let mut used_sum = 0.0;
    for request in 0..warm + measured {
        if request == warm {
            before = run.ftl.counters();
        }
        if run.chance.unit() < q {
            let at = run.chance.below(in_use.len() as u32);
            let unit = in_use.swap_remove(at as usize);
            place[unit as usize] = u32::MAX;
            if let Some(&moved) = in_use.get(at as usize) {
                place[moved as usize] = at;
            }
            assert!(run.ftl.trim(unit));
        } else {
            let unit = run.chance.below(units);
            run.ftl.write(unit, 1, 0, &mut ()).unwrap();
            if place[unit as usize] == u32::MAX {
                place[unit as usize] = in_use.len() as u32;
                in_use.push(unit);
            }
        }
        if request >= warm {
            used_sum += f64::from(run.ftl.mapped_units()) / f64::from(units);
        }
    }
    let after = run.ftl.counters();
    let host = (after.host_units - before.host_units) as f64;
    let wa = (host + (after.moved_units - before.moved_units) as f64) / host;
    verdict.check(&format!("{what} against a simulation"), row.simulated, wa);
    verdict.check(&format!("{what} against theory"), row.theory.unwrap(), wa);
    let used = used_sum / measured as f64;
    verdict.check(&format!("{what} share in use"), row.used.unwrap(), used);
}

#[test]
fn some_rows_of_each_kind_are_met() {
    let mut verdict = Verdict::default();
    for row in &uniform_rows() {
        let key = ((row.spare * 1e4).round() as u32, row.pages);
        match key {
            (1000, 8) => check_greedy(row, 8192, &mut verdict),
            (2000, 64) => {
                check_fifo(row, 4096, &mut verdict);
                check_random(row, 4096, &mut verdict);
            }
            (2857, 32) => check_greedy(row, 4096, &mut verdict),
            _ => {}
        }
    }
    for row in &extra_rows() {
        match (row.case, row.blocks, row.spare, row.param) {
            ("d-choices", _, 0.2857, "10")
            | ("greedy+TRIM", _, 0.2, "0.2")
            | ("greedy finite blocks", 64, ..) => check_extra(row, &mut verdict),
            _ => {}
        }
    }
    verdict.finish("quick rows");
}

#[test]
#[ignore = "minutes, in release only"]
fn every_greedy_row_is_met() {
    let mut verdict = Verdict::default();
    for row in &uniform_rows() {
        check_greedy(row, blocks_for(row.pages), &mut verdict);
    }
    verdict.finish("greedy");
}

#[test]
#[ignore = "minutes, in release only"]
fn every_fifo_row_is_met() {
    let mut verdict = Verdict::default();
    for row in &uniform_rows() {
        check_fifo(row, blocks_for(row.pages), &mut verdict);
    }
    verdict.finish("fifo");
}

#[test]
#[ignore = "minutes, in release only"]
fn every_random_row_is_met() {
    let mut verdict = Verdict::default();
    for row in &uniform_rows() {
        check_random(row, blocks_for(row.pages), &mut verdict);
    }
    verdict.finish("random");
}

#[test]
#[ignore = "minutes, in release only"]
fn every_extra_row_is_met() {
    let mut verdict = Verdict::default();
    for row in &extra_rows() {
        check_extra(row, &mut verdict);
    }
    verdict.finish("d-choices, TRIM, finite blocks");
}
