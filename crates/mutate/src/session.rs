//! A mutation run: each mutant against what reaches it, until something notices.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::finder::Mutant;
use crate::probes::{Kind, Probe, command, is_failure};
use crate::process::{Ended, Task, run};
use crate::results::{Outcome, Results, Verdict};
use crate::subject::Subjects;

/// The first processes of a mutant take about this long; later ones more and more.
const FIRST_CHUNK: Duration = Duration::from_millis(300);
/// How much longer each process may be than the one before.
const CHUNK_GROWTH: u32 = 4;
/// Processor time that each process may take in any case.
const LEAST_LIMIT: Duration = Duration::from_secs(3);
/// How much longer than without a mutant a process may take.
const SLOWER: u32 = 6;

/// Who is asked about a mutant, in order, and how long what they run may take without a mutant.
/// What takes longer is left out, the slowest first.
const STAGES: [(Outcome, Duration); 3] = [
    (Outcome::OwnTest, Duration::from_secs(5)),
    (Outcome::Scenario, Duration::from_secs(3)),
    (Outcome::OtherTest, Duration::from_secs(1)),
];

/// As many noticed mutants count as much as being near.
const MOST_NOTICED: u32 = 12;

/// What the threads of a run share.
pub struct Session<'a> {
    /// What can notice a mutant.
    pub probes: &'a [Probe],
    /// How many times the usual time a mutant may take.
    pub budget: u32,
    /// When to begin no more mutants.
    pub until: Instant,
    /// Where results go.
    pub results: Mutex<&'a mut Results>,
    /// The words of the probes.
    pub subjects: Subjects,
    /// How many mutants of a file each probe has noticed.
    pub noticed: Mutex<BTreeMap<(String, usize), u32>>,
}

/// What is known of a probe before it is asked about a mutant.
pub(crate) struct Record {
    /// How near its name is to what the mutant is about.
    pub near: u32,
    /// Mutants of the same file that it has noticed.
    pub noticed: u32,
    /// Processor time that it takes without a mutant.
    pub takes: Duration,
}

/// Probes in the order in which they are asked: those first that are near to the mutant or noticed
/// others of its file, then the quickest; as many as take `most` together, and at least one.
pub(crate) fn affordable(
    mut asked: Vec<usize>,
    most: Duration,
    record: impl Fn(usize) -> Record,
) -> Vec<usize> {
    asked.sort_by_cached_key(|at| {
        let Record { near, noticed, takes } = record(*at);
        (Reverse(near + noticed.min(MOST_NOTICED)), takes)
    });
    let first = asked.first().copied();
    // What takes long and noticed much must not take their turn from the quick ones behind it.
    let mut takes = Duration::ZERO;
    asked.retain(|at| {
        let with_this = takes + record(*at).takes;
        let fits = with_this <= most;
        takes = if fits { with_this } else { takes };
        fits
    });
    if asked.is_empty() {
        asked.extend(first);
    }
    asked
}

impl Session<'_> {
    /// Runs mutants on `jobs` threads. Returns how many it ran.
    pub fn run(&self, mutants: &[&Mutant], jobs: usize) -> io::Result<usize> {
        let next = Mutex::new(mutants.iter());
        let work = || -> io::Result<usize> {
            let mut ran = 0;
            while Instant::now() < self.until {
                let Some(mutant) = next.lock().expect("no panic under this lock").next() else {
                    break;
                };
                let verdict = self.judge(mutant)?;
                self.results.lock().expect("no panic under this lock").add(mutant, &verdict)?;
                ran += 1;
            }
            Ok(ran)
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
            let ran = workers.into_iter().map(|worker| worker.join().expect("no worker panics"));
            ran.sum()
        })
    }

    /// Asks the tests of the mutant's crate, then the scenarios, then the tests of other crates.
    fn judge(&self, mutant: &Mutant) -> io::Result<Verdict> {
        let reaching = |at: &usize| self.probes[*at].reached.contains(&mutant.number);
        let reaching: Vec<usize> = (0..self.probes.len()).filter(reaching).collect();
        if reaching.is_empty() {
            return Ok(Verdict { outcome: Outcome::NotReached, by: String::new() });
        }
        let own = Kind::Test(mutant.package().to_owned());
        let stage_of = |at: usize| match &self.probes[at].kind {
            kind if *kind == own => 0,
            Kind::Scenario => 1,
            Kind::Test(_) => 2,
        };
        let near = self.subjects.near(&mutant.file, &mutant.context);
        let mut count = 0;
        for (stage, (outcome, most)) in STAGES.into_iter().enumerate() {
            let asked = reaching.iter().copied().filter(|at| stage_of(*at) == stage).collect();
            let asked = affordable(asked, most * self.budget, |at| {
                let noticed = self.noticed.lock().expect("no panic under this lock");
                Record {
                    near: near[at],
                    noticed: noticed.get(&(mutant.file.clone(), at)).copied().unwrap_or(0),
                    takes: self.probes[at].takes,
                }
            });
            count += asked.len();
            if let Some(by) = self.ask(mutant, &asked)? {
                return Ok(Verdict { outcome, by });
            }
        }
        let by = format!("{count} of {} that reach it", reaching.len());
        Ok(Verdict { outcome: Outcome::Survived, by })
    }

    /// Runs probes until one notices the mutant, and says which.
    fn ask(&self, mutant: &Mutant, asked: &[usize]) -> io::Result<Option<String>> {
        let mut chunk_takes = FIRST_CHUNK;
        let mut rest = asked;
        while !rest.is_empty() {
            let mut takes = Duration::ZERO;
            let fits = rest.iter().take_while(|at| {
                takes += self.probes[**at].takes;
                takes <= chunk_takes
            });
            let count = fits.count().max(1);
            let (chunk, later) = rest.split_at(count);
            let mut by_program: BTreeMap<&PathBuf, Vec<usize>> = BTreeMap::new();
            for at in chunk {
                by_program.entry(&self.probes[*at].program).or_default().push(*at);
            }
            for chunk in by_program.values() {
                if let Some(by) = self.run_probes(mutant, chunk)? {
                    return Ok(Some(by));
                }
            }
            rest = later;
            chunk_takes *= CHUNK_GROWTH;
        }
        Ok(None)
    }

    /// Runs probes of one program in one process.
    fn run_probes(&self, mutant: &Mutant, chunk: &[usize]) -> io::Result<Option<String>> {
        let probes: Vec<&Probe> = chunk.iter().map(|at| &self.probes[*at]).collect();
        let takes: Duration = probes.iter().map(|probe| probe.takes).sum();
        let task = Task {
            command: &command(&probes),
            folder: &probes[0].folder,
            mutant: &mutant.number.to_string(),
            limit: LEAST_LIMIT + takes * SLOWER,
        };
        let by = match run(&task, |line| is_failure(&probes[0].kind, line))?.0 {
            Ended::Passed => return Ok(None),
            Ended::Limit => return Ok(Some("limit of time".to_owned())),
            Ended::Failed(line) => line,
        };
        let says = chunk.iter().find(|at| by.contains(&self.probes[**at].name));
        if let Some(at) = says {
            let mut noticed = self.noticed.lock().expect("no panic under this lock");
            *noticed.entry((mutant.file.clone(), *at)).or_default() += 1;
        }
        Ok(Some(says.map_or(by, |at| self.probes[*at].name.clone())))
    }
}
