//! Coverage of states: which faults have met which phases, activities, jobs and shapes.
//!
//! What enters: each strike of a fault and each power cut, and what the machine did at that moment.
//! What leaves: counts, the page of `forebay-prove --coverage`, and how rare a scenario is.
//! Who calls: the disks and the boots of a run, and the search.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::rc::Rc;

use forebay_sim::CrashPoint;
use forebay_sim::faults::Fault;

use crate::scenario::{Admin, Scenario};
use crate::subject::SERVICES;

/// What a pool does beside its clients' requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Activity {
    /// The scan that runs: "scrub", "resilver", or "no scan".
    pub scan: &'static str,
    /// The cleaner has moved blocks since the import.
    pub cleans: bool,
}

/// The state of a run at the moment of a fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    /// The fault.
    pub fault: &'static str,
    /// Another disk was struck before.
    pub is_further: bool,
    /// The phase of the boot.
    pub phase: &'static str,
    /// What the pool did.
    pub activity: Activity,
    /// The administrator's job in progress.
    pub job: &'static str,
    /// Layout and log of the pool.
    pub shape: String,
}

/// The states that one run has met.
pub struct Coverage {
    shape: String,
    /// The phase and the activity at present.
    observer: RefCell<Option<Observer>>,
    /// The administrator's job in progress.
    pub job: Cell<&'static str>,
    met: RefCell<BTreeMap<State, u64>>,
}

type Observer = Box<dyn Fn() -> (&'static str, Activity)>;

/// Counts of states.
pub type States = BTreeMap<State, u64>;

impl Coverage {
    /// The coverage of a run of `scenario`, before its first fault.
    pub(crate) fn new(scenario: &Scenario) -> Rc<Self> {
        Rc::new(Self {
            shape: shape_of(scenario),
            observer: RefCell::default(),
            job: Cell::new(NO_JOB),
            met: RefCell::default(),
        })
    }

    /// Asks `observer` from now on what the machine does.
    pub(crate) fn observe(&self, observer: impl Fn() -> (&'static str, Activity) + 'static) {
        *self.observer.borrow_mut() = Some(Box::new(observer));
        self.job.set(NO_JOB);
    }

    /// Notes that a fault strikes now.
    pub(crate) fn note(&self, fault: &'static str, is_further: bool) {
        let observer = self.observer.borrow();
        let (phase, activity) = observer.as_ref().map_or_else(Default::default, |ask| ask());
        let (job, shape) = (self.job.get(), self.shape.clone());
        let state = State { fault, is_further, phase, activity, job, shape };
        *self.met.borrow_mut().entry(state).or_default() += 1;
    }

    /// The states met so far.
    pub(crate) fn states(&self) -> States {
        self.met.borrow().clone()
    }
}

const NO_JOB: &str = "no job";

fn shape_of(scenario: &Scenario) -> String {
    format!("{:?}, {:?}", scenario.spec.raid, scenario.spec.log)
}

/// The name of a fault.
pub(crate) fn fault_name(fault: &Fault) -> &'static str {
    match fault {
        Fault::Torn { .. } => "torn write",
        Fault::Lost { .. } => "lost write",
        Fault::Misdirected { .. } => "misdirected write",
        Fault::Misaddressed { .. } => "misaddressed write",
        Fault::Blocked { .. } => "blocked thread",
        Fault::Rot { .. } | Fault::RotRecent { .. } => "rot",
        Fault::Error { .. } => "error",
        Fault::FlushError { .. } => "failed flush",
        Fault::LyingFlush { .. } => "lying flush",
        Fault::Slow { .. } => "slow",
        Fault::SlowAnswer { .. } => "slow answer",
        Fault::SlowArea { .. } => "slow area",
        Fault::Hung { .. } => "short hang",
        Fault::Stuck { .. } => "hang",
        Fault::Late { .. } => "late command",
        Fault::NoSpace { .. } => "no space",
        Fault::Gone | Fault::GoneAt { .. } => "gone",
        Fault::Back | Fault::Heal => "back",
        Fault::ReadOnly { .. } => "read-only",
    }
}

/// A pair of things that a scenario brings together.
type Pair = (String, String);

/// Volumes of so many sectors nearly fill a small pool.
const LARGE_SECTORS: u64 = 24 << 11;

/// Whether sparse volumes have a property that the pool's `dedup_index_size` says.
fn has_service(scenario: &Scenario, property: &str) -> bool {
    let size = scenario.spec.properties.get("dedup_index_size");
    let found = SERVICES.iter().find(|(drawn, _)| size.is_some_and(|size| size == drawn));
    found.is_some_and(|(_, properties)| properties.iter().any(|(name, _)| *name == property))
}

/// The pairs of a scenario: what its boots bring together of faults, power cuts, jobs, the shape
/// and the kind of the boot.
fn pairs(scenario: &Scenario) -> BTreeSet<Pair> {
    let mut out = BTreeSet::new();
    for (index, boot) in scenario.boots.iter().enumerate() {
        let mut things: BTreeSet<String> =
            boot.admin.iter().map(|job| job.name().to_owned()).collect();
        things.remove(Admin::Pause { ns: 0 }.name());
        things.insert(shape_of(scenario));
        let kinds = [
            (index > 0, "later boot"),
            (boot.is_beside, "administration beside I/O"),
            (boot.rewinds, "rewind"),
            (boot.succession.is_some(), "succession"),
            (!boot.remote.is_empty(), "NBD"),
            (!scenario.spec.properties.is_empty(), "properties"),
            (scenario.spec.properties.contains_key("cache_size"), "read cache"),
            (has_service(scenario, "dedup"), "de-duplication"),
            (has_service(scenario, "compression"), "compression"),
            (!scenario.sparse.is_empty(), "sparse volumes"),
            (scenario.volumes.iter().sum::<u64>() > LARGE_SECTORS, "large volumes"),
        ];
        things.extend(kinds.iter().filter(|(is_so, _)| *is_so).map(|(_, name)| (*name).to_owned()));
        things.extend(boot.faults.iter().map(|timed| fault_name(&timed.fault).to_owned()));
        things.extend(boot.crash.as_ref().map(|crash| match crash.point {
            CrashPoint::SinceFlush { .. } => "power cut in a root".to_owned(),
            CrashPoint::AfterFlush(_) => "power cut after a flush".to_owned(),
            _ => "power cut".to_owned(),
        }));
        for (at, thing) in things.iter().enumerate() {
            let others = things.iter().skip(at + 1);
            out.extend(others.map(|other| (thing.clone(), other.clone())));
        }
    }
    out
}

/// How often a search has drawn each pair.
#[derive(Debug, Default)]
pub struct Drawn(BTreeMap<Pair, u64>);

impl Drawn {
    /// How rare a scenario is for what it costs. Each of its pairs counts less the more often it
    /// was drawn; the cost is an estimate from its acts and what it reads after each cut.
    #[must_use]
    pub fn rarity(&self, scenario: &Scenario) -> u64 {
        let weight = |pair| (1 << 30) / (1 + self.0.get(&pair).copied().unwrap_or(0)).pow(2);
        let rarity: u64 = pairs(scenario).into_iter().map(weight).sum();
        let sectors: u64 = scenario.volumes.iter().sum();
        rarity / (200 + scenario.acts() as u64 + sectors / 64)
    }

    /// Counts the pairs of a scenario.
    pub fn add(&mut self, scenario: &Scenario) {
        for pair in pairs(scenario) {
            *self.0.entry(pair).or_default() += 1;
        }
    }
}

/// The page: for each fault how often it met each phase, activity, job and shape.
#[must_use]
pub fn page(states: &States, title: &str) -> String {
    let mut out = format!("# States met\n\n{title}\n");
    let cells: usize = states.len();
    let _ = writeln!(
        out,
        "\nDistinct states (fault, first or further, phase, activity, job, shape): {cells}."
    );
    let further =
        |state: &State| (if state.is_further { "further disk" } else { "first disk" }).to_owned();
    let doing = |state: &State| {
        let Activity { scan, cleans } = state.activity;
        let scan = if scan.is_empty() { "no scan" } else { scan };
        if cleans { format!("{scan}, cleaner") } else { scan.to_owned() }
    };
    let both = |state: &State| format!("{}: {}", further(state), doing(state));
    table(&mut out, "Phases", states, &|state| state.phase.to_owned());
    table(&mut out, "First and further disks, scans and the cleaner", states, &both);
    table(&mut out, "Jobs of the administrator", states, &|state| state.job.to_owned());
    table(&mut out, "Shapes", states, &|state| state.shape.clone());
    out
}

/// A table with a column for each fault and a row for each state of the pool. A cell counts the
/// scenarios in which the fault met that state; an empty cell stands for none.
fn table(out: &mut String, title: &str, states: &States, met: &dyn Fn(&State) -> String) {
    let faults: BTreeSet<&str> = states.keys().map(|state| state.fault).collect();
    let mut counts: BTreeMap<String, BTreeMap<&str, u64>> = BTreeMap::new();
    for (state, count) in states {
        *counts.entry(met(state)).or_default().entry(state.fault).or_default() += count;
    }
    let never = counts.values().map(|row| faults.len() - row.len()).sum::<usize>();
    let all = counts.len() * faults.len();
    let _ = writeln!(out, "\n## {title}\n\n{never} of {all} cells were never met.\n");
    let names: Vec<&str> = faults.iter().copied().collect();
    let _ = writeln!(out, "| | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    for (name, row) in counts {
        let cell = |fault: &&str| row.get(fault).map_or_else(|| "–".to_owned(), u64::to_string);
        let cells: Vec<String> = names.iter().map(cell).collect();
        let _ = writeln!(out, "| {name} | {} |", cells.join(" | "));
    }
}

#[cfg(test)]
mod tests;
