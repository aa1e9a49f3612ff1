//! Catalogue of devices: the numbers of each model, their sources, and figures others printed.

use crate::error::{LabError, one_line};
use crate::files;
use crate::load::Load;
use forebay_flash::{DeviceSpec, MediaSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

mod pages;
mod simulated;

pub use simulated::{Simulated, model, simulated};

/// Version of [`list_json`]. Raised when a field changes its meaning or goes.
const JSON_VERSION: u32 = 1;

/// How far a number can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// Printed by the source named.
    Sourced,
    /// Chosen because it is typical; the text says of what.
    Assumed,
    /// Chosen so that a printed figure comes out; the text says which.
    Fitted,
}

/// Where a number of the model is from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// How far to trust it.
    pub mark: Trust,
    /// The source, the reason, or the figure it was fitted to.
    pub source: String,
    /// Half-width of the interval it lies in, as a share of it, where the page gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<f64>,
}

/// Half-width given to an assumed number whose page gives none. An assumption of this lab.
const ASSUMED_SPREAD: f64 = 0.25;

impl Provenance {
    /// Half-width of the interval that the number lies in, as a share of it.
    #[must_use]
    pub fn spread(&self) -> f64 {
        let of_mark = if self.mark == Trust::Assumed { ASSUMED_SPREAD } else { 0.0 };
        self.within.unwrap_or(of_mark)
    }
}

/// A figure that others printed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// The figure, when it is one.
    pub value: Option<f64>,
    /// Lower end, when a range was printed.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// Who printed it.
    pub source: String,
    /// Remembered rather than looked up.
    #[serde(default)]
    pub recalled: bool,
    /// Printed as "about" so much.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub about: bool,
    /// The load behind a rate, when it is not random 4 KiB writes of pseudo-random data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// A remark for the reader: `below`, `compressible data`.
    #[serde(default)]
    pub note: String,
}

/// Half-width given to a remembered figure. An assumption of this lab, not a statistic.
const RECALLED_SPREAD: f64 = 0.25;
/// Half-width given to a figure printed as "about".
const ABOUT_SPREAD: f64 = 0.10;

impl Fact {
    /// Lower end, middle, upper end. A printed figure is exact, a figure printed as "about" has
    /// ± 10 %, a remembered figure ± 25 %, a printed range keeps its ends.
    #[must_use]
    pub fn interval(&self) -> (f64, f64, f64) {
        let middle = self.value.unwrap_or_else(|| {
            let (low, high) = (self.low.unwrap_or_default(), self.high.unwrap_or_default());
            (low + high) / 2.0
        });
        let spread = match (self.recalled, self.about) {
            (true, _) => RECALLED_SPREAD,
            (_, true) => ABOUT_SPREAD,
            _ => 0.0,
        };
        (
            self.low.unwrap_or(middle * (1.0 - spread)),
            middle,
            self.high.unwrap_or(middle * (1.0 + spread)),
        )
    }

    /// Its middle.
    #[must_use]
    pub fn middle(&self) -> f64 {
        self.interval().1
    }
}

/// What others printed about a device. A missing figure is unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Facts {
    /// What keeps the data.
    pub medium: String,
    /// Year of launch.
    pub year: Option<u32>,
    /// Whether user data in flight survives a power cut: `yes`, `no`, `map-only`, `unknown`.
    pub protected: String,
    /// `unlimited` when writing wears nothing.
    pub endurance: String,
    /// 4 KiB random writes a second, fresh or as the data sheet has it.
    pub fresh_write_iops: Option<Fact>,
    /// 4 KiB random writes a second, sustained.
    pub sustained_write_iops: Option<Fact>,
    /// 4 KiB writes each followed by a flush, one at a time, a second.
    pub sync_write_iops: Option<Fact>,
    /// Latency of a write, as the vendor measures it, in microseconds.
    pub write_latency_us: Option<Fact>,
    /// Media bytes for each host byte.
    pub write_amplification: Option<Fact>,
    /// Host bytes it is rated for, in 10^12.
    pub endurance_tb: Option<Fact>,
    /// The same with a fifth of its capacity left unused.
    pub endurance_tb_spare20: Option<Fact>,
    /// Capacities a day over the warranty it is rated for.
    pub endurance_dwpd: Option<Fact>,
    /// Backups its flash is good for.
    pub backups: Option<Fact>,
    /// Price at launch in dollars.
    pub price_usd: Option<Fact>,
    /// Warranty in years.
    pub warranty_years: Option<Fact>,
    /// Rates of other loads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<PrintedRate>,
}

/// A rate that others printed, with the load behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrintedRate {
    /// Of what: `sequential reads`.
    pub what: String,
    /// Requests a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<f64>,
    /// The same as 10^6 bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mb_s: Option<f64>,
    /// What the device holds before.
    #[serde(default)]
    pub before: Before,
    /// The share of the device that the load uses, above 0, at most 1. Default 1.
    #[serde(default = "whole")]
    pub span_share: f64,
    /// How many times the load writes the device; without it, it runs for a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passes: Option<f64>,
    /// Whether the end of the load counts, instead of all of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_end: bool,
    /// The load.
    pub load: Load,
    /// Whether a number of the model was chosen so that this rate comes out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fitted: bool,
    /// Who printed it.
    pub source: String,
}

fn whole() -> f64 {
    1.0
}

/// What a device holds before a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Before {
    /// Nothing: it was erased.
    #[default]
    Erased,
    /// The span of the load, written in order just before.
    Span,
}

impl PrintedRate {
    /// Requests a second.
    #[must_use]
    pub fn requests_s(&self) -> f64 {
        let of_bytes = self.mb_s.map(|mb_s| mb_s * 1e6 / f64::from(self.load.block_bytes));
        self.iops.or(of_bytes).unwrap_or_default()
    }
}

/// One page of the catalogue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Short name, as `--device` takes it.
    pub id: String,
    /// Parts of the names by which drives of this model call themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub part_numbers: Vec<String>,
    /// Why the model's rates are not to be trusted. Such a device is left out of rankings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// The model's numbers.
    pub device: DeviceSpec,
    /// Where they are from, by field; the longest matching name counts.
    #[serde(default)]
    pub provenance: BTreeMap<String, Provenance>,
    /// What others printed.
    #[serde(default)]
    pub facts: Facts,
}

impl Page {
    /// Reads a page and checks the device. `origin` names the text in errors.
    pub fn parse(origin: &str, text: &str) -> Result<Self, LabError> {
        let page: Self = toml::from_str(text)
            .map_err(|e| LabError::Malformed { origin: origin.to_owned(), detail: one_line(e) })?;
        page.device.check()?;
        Ok(page)
    }

    /// Where the model's number at `path` (`media.flash.timing.read_us`) is from; the longest name
    /// in the page that is `path` or a table around it.
    #[must_use]
    pub fn provenance_of(&self, path: &str) -> Option<&Provenance> {
        self.provenance
            .iter()
            .filter(|(name, _)| {
                name.is_empty()
                    || path == name.as_str()
                    || path.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'))
            })
            .max_by_key(|(name, _)| name.len())
            .map(|(_, p)| p)
    }

    /// Host bytes the device is rated for: the printed figure, or drive writes a day times
    /// capacity times warranty. None when unknown or unlimited.
    #[must_use]
    pub fn rated_bytes(&self) -> Option<f64> {
        let facts = &self.facts;
        if let Some(tb) = &facts.endurance_tb {
            return Some(tb.middle() * 1e12);
        }
        let days = facts.warranty_years.as_ref()?.middle() * 365.0;
        Some(facts.endurance_dwpd.as_ref()?.middle() * self.device.capacity_bytes as f64 * days)
    }

    /// Host bytes until the cycles of its flash are used up, at `amplification` media bytes for
    /// each host byte. None when it is no flash.
    #[must_use]
    pub fn bytes_by_cycles(&self, amplification: f64) -> Option<f64> {
        let MediaSpec::Flash(flash) = &self.device.media else { return None };
        let cycles = flash.endurance.cycles_mean;
        (cycles > 0.0).then(|| flash.raw_bytes() as f64 * cycles / amplification.max(1e-9))
    }

    /// Whether what one command costs the controller is known: without it a flash device writes as
    /// fast as its link, which is an upper bound.
    #[must_use]
    pub fn knows_controller(&self) -> bool {
        match &self.device.media {
            MediaSpec::Flash(flash) => {
                flash.controller.command_us > 0.0 || flash.controller.unit_us > 0.0
            }
            MediaSpec::Dram(_) | MediaSpec::Disk(_) => true,
        }
    }

    /// Whether writing wears nothing.
    #[must_use]
    pub fn endless(&self) -> bool {
        self.facts.endurance == "unlimited"
    }
}

/// Every page, in the order of the list.
///
/// # Panics
/// When a built-in page is malformed: the program was built from a broken catalogue.
#[must_use]
pub fn all() -> Vec<Page> {
    pages::PAGES
        .iter()
        .map(|(id, text)| match Page::parse(id, text) {
            Ok(page) => page,
            Err(why) => panic!("built-in page {id}: {why}"),
        })
        .collect()
}

/// The text of the built-in page `id`.
#[must_use]
pub fn text(id: &str) -> Option<&'static str> {
    pages::PAGES.iter().find(|(name, _)| *name == id).map(|(_, text)| *text)
}

/// The page of a built-in device by identifier or name, case and punctuation aside.
pub fn find(name: &str) -> Result<Page, LabError> {
    let wanted = plain(name);
    let pages = all();
    let exact = pages.iter().find(|p| plain(&p.id) == wanted || plain(&p.device.name) == wanted);
    if let Some(page) = exact {
        return Ok(page.clone());
    }
    let partial: Vec<&Page> =
        pages.iter().filter(|p| !wanted.is_empty() && plain(&p.id).contains(&wanted)).collect();
    match partial.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(LabError::UnknownDevice { name: name.to_owned(), known: pages.len() }),
        some => Err(LabError::AmbiguousDevice {
            name: name.to_owned(),
            candidates: some.iter().map(|p| p.id.clone()).collect(),
        }),
    }
}

/// The page of a drive that calls itself `model`.
#[must_use]
pub fn of_drive(model: &str) -> Option<Page> {
    let is_it = |page: &Page| page.part_numbers.iter().any(|part| model.contains(part.as_str()));
    all().into_iter().find(is_it)
}

/// The page of a built-in device, or a page in a file: a name with a `/` or one that ends in
/// `.toml` is a file.
pub fn load(name: &str) -> Result<Page, LabError> {
    let is_file = name.ends_with(".toml") || name.contains('/');
    if !is_file {
        return find(name);
    }
    Page::parse(name, &files::read_named(Path::new(name))?)
}

fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

/// The list for people: one line a device.
#[must_use]
pub fn list() -> String {
    let unknown = || "unknown".to_owned();
    let number = |fact: Option<&Fact>| {
        fact.map_or_else(unknown, |f| {
            let mark = if f.recalled { "?" } else { "" };
            format!("{}{mark}", f.middle().round())
        })
    };
    let mut out = format!(
        "{:<26} {:<34} {:<18} {:>5} {:>12} {:>10} {:>9}\n",
        "NAME", "DEVICE", "MEDIUM", "YEAR", "WRITE IOPS", "PROTECTED", "PRICE $"
    );
    for page in all() {
        let facts = &page.facts;
        out.push_str(&format!(
            "{:<26} {:<34} {:<18} {:>5} {:>12} {:>10} {:>9}\n",
            page.id,
            format!("{}{}", page.device.name, page.reservation.as_ref().map_or("", |_| " !")),
            facts.medium,
            facts.year.map_or_else(unknown, |y| y.to_string()),
            number(facts.fresh_write_iops.as_ref().or(facts.sustained_write_iops.as_ref())),
            facts.protected,
            number(facts.price_usd.as_ref()),
        ));
    }
    out.push_str("? from memory, not confirmed. ! with a reservation, left out of rankings.\n");
    out.push_str("Sources and reservations: the pages themselves (--show NAME).\n");
    out
}

/// The catalogue for programs: every page whole, in a document with its version.
#[must_use]
pub fn list_json() -> String {
    #[derive(Serialize)]
    struct Document {
        version: u32,
        command: &'static str,
        devices: Vec<Page>,
    }
    let document = Document { version: JSON_VERSION, command: "simulate --list", devices: all() };
    let mut text = serde_json::to_string_pretty(&document).expect("plain data");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests;
