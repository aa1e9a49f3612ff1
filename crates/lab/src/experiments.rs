//! The experiments: each a list of tasks, and the findings from their outcomes.

use crate::catalogue::{self, Page};
use crate::drive::{Cell, Driver};
use crate::task::Outcome;
use crate::{LabError, hash};
use forebay_flash::{DeviceSpec, MediaSpec};
use forebay_report::Experiment;
use std::collections::BTreeMap;

mod alignment;
mod attachment;
mod common;
mod content;
mod degradation;
mod endurance;
mod figures;
mod hybrid;
mod loads;
mod logs;
mod mixed;
mod power_cut;
mod price;
pub(crate) mod procedures;
mod sensitivity;
mod summary;
mod wear;
mod zil_pattern;

/// What an experiment may ask for.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// Devices to run, the user's or the experiment's own.
    pub pages: Vec<Page>,
    /// Whether the user named them.
    pub chosen: bool,
    /// The seed.
    pub seed: u64,
    /// Scale of models, 0 for automatic.
    pub scale: u32,
    /// Whether this is the small edition.
    pub small: bool,
}

/// What a request asks of every experiment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    /// Devices that the user named; none stands for the experiment's own.
    pub chosen: Vec<Page>,
    /// The seed.
    pub seed: u64,
    /// Scale of models, 0 for automatic.
    pub scale: u32,
    /// Whether the small edition is asked for.
    pub small: bool,
}

/// Raw bytes that the model of a flash device has in the small edition.
const SMALL_RAW_BYTES: f64 = (1u64 << 29) as f64;
/// How many times less time other media are run for in the small edition.
const SMALL_SCALE: u32 = 6_000;

impl Context {
    /// `full`, or `small` in the small edition.
    pub(crate) fn pick<T>(&self, full: T, small: T) -> T {
        if self.small { small } else { full }
    }

    /// How many times smaller than the device its model is; 0 for automatic.
    pub(crate) fn scale_of(&self, device: &DeviceSpec) -> u32 {
        match &device.media {
            _ if self.scale != 0 || !self.small => self.scale,
            MediaSpec::Flash(flash) => {
                (flash.raw_bytes() as f64 / SMALL_RAW_BYTES).round().max(1.0) as u32
            }
            MediaSpec::Dram(_) | MediaSpec::Disk(_) => SMALL_SCALE,
        }
    }
}

/// One experiment.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub id: &'static str,
    pub title: &'static str,
    pub question: &'static str,
    pub method: &'static str,
    /// Devices when the user names none; none here means the whole catalogue.
    pub devices: &'static [&'static str],
    /// Devices of the small edition.
    pub small: &'static [&'static str],
    pub cells: fn(&Context) -> Vec<Cell>,
    pub show: fn(&Context, &[Outcome], &mut Experiment),
}

/// All of them, in the order of the report.
pub(crate) const PLANS: &[Plan] = &[
    summary::PLAN,
    figures::PLAN,
    sensitivity::PLAN,
    degradation::PLAN,
    alignment::PLAN,
    content::PLAN,
    mixed::PLAN,
    loads::PLAN,
    logs::PLAN,
    attachment::PLAN,
    zil_pattern::PLAN,
    endurance::PLAN,
    price::PLAN,
    wear::PLAN,
    hybrid::PLAN,
    power_cut::PLAN,
];

/// Names of all experiments.
pub(crate) fn names() -> Vec<&'static str> {
    PLANS.iter().map(|p| p.id).collect()
}

impl Plan {
    /// The experiment `id`.
    pub(crate) fn find(id: &str) -> Option<&'static Plan> {
        PLANS.iter().find(|p| p.id == id)
    }

    fn context(&self, request: &Request) -> Result<Context, LabError> {
        let own = if request.small { self.small } else { self.devices };
        let pages = if !request.chosen.is_empty() {
            request.chosen.clone()
        } else if own.is_empty() {
            catalogue::all()
        } else {
            own.iter().map(|id| catalogue::find(id)).collect::<Result<_, _>>()?
        };
        let (seed, scale, small) = (request.seed, request.scale, request.small);
        Ok(Context { pages, chosen: !request.chosen.is_empty(), seed, scale, small })
    }

    /// Runs it. Returns findings, checks, charts and tables.
    pub(crate) fn run(&self, driver: &Driver, request: &Request) -> Result<Experiment, LabError> {
        let context = self.context(request)?;
        let (seed, scale) = (request.seed, request.scale);
        let cells = (self.cells)(&context);
        if cells.is_empty() {
            return Err(LabError::NoRunnableDevice { experiment: self.id });
        }
        let outcomes = driver.all(self.id, &cells)?;
        let tasks: Vec<_> = cells.iter().map(|c| &c.task).collect();
        let names: Vec<_> = context.pages.iter().map(|p| p.id.as_str()).collect();
        let mut config = BTreeMap::new();
        config.insert("devices".to_owned(), names.join(", "));
        config.insert("runs".to_owned(), cells.len().to_string());
        let scale_text = if scale == 0 { "automatic".to_owned() } else { format!("1/{scale}") };
        config.insert("scale of models".to_owned(), scale_text);
        if context.small {
            let text = "small: fewer devices, shorter runs; not for conclusions";
            config.insert("edition".to_owned(), text.to_owned());
        }
        let mut experiment = Experiment {
            id: self.id.into(),
            title: self.title.into(),
            question: self.question.into(),
            method: format!("{} {}", self.method, common::SCALE_NOTE),
            seed,
            config_hash: hash::of(&tasks),
            config,
            ..Experiment::default()
        };
        (self.show)(&context, &outcomes, &mut experiment);
        common::invariants(&outcomes, &mut experiment);
        for chart in &mut experiment.charts {
            chart.seed = seed;
            chart.config_hash.clone_from(&experiment.config_hash);
        }
        Ok(experiment)
    }
}
