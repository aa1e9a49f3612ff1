//! The experiments: each a list of tasks, and the findings from their outcomes.

use crate::catalogue::{self, Page};
use crate::drive::{Cell, Driver};
use crate::task::Outcome;
use crate::{LabError, hash};
use forebay_report::Experiment;
use std::collections::BTreeMap;

mod alignment;
mod attachment;
mod common;
mod content;
mod degradation;
mod endurance;
mod figures;
mod mixed;
mod power_cut;
mod price;
pub(crate) mod procedures;
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
    pub cells: fn(&Context) -> Vec<Cell>,
    pub show: fn(&Context, &[Outcome], &mut Experiment),
}

/// All of them, in the order of the report.
pub(crate) const PLANS: &[Plan] = &[
    summary::PLAN,
    figures::PLAN,
    degradation::PLAN,
    alignment::PLAN,
    content::PLAN,
    mixed::PLAN,
    attachment::PLAN,
    zil_pattern::PLAN,
    endurance::PLAN,
    price::PLAN,
    wear::PLAN,
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

    fn context(&self, chosen: &[Page], seed: u64, scale: u32) -> Result<Context, LabError> {
        let pages = if chosen.is_empty() && self.devices.is_empty() {
            catalogue::all()
        } else if chosen.is_empty() {
            self.devices.iter().map(|id| catalogue::find(id)).collect::<Result<_, _>>()?
        } else {
            chosen.to_vec()
        };
        Ok(Context { pages, chosen: !chosen.is_empty(), seed, scale })
    }

    /// Runs it. Returns findings, checks, charts and tables.
    pub(crate) fn run(
        &self,
        driver: &Driver,
        chosen: &[Page],
        seed: u64,
        scale: u32,
    ) -> Result<Experiment, LabError> {
        let context = self.context(chosen, seed, scale)?;
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
