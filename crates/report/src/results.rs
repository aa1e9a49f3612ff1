//! Results of experiments: findings, checks, charts and tables, each traceable to a seed.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name and version of the JSON layout. The number rises when a reader of the old layout would be
/// misled.
pub const SCHEMA: &str = "forebay-results/1";

/// Program, version and, where the build was told it, commit: what [`Results::generator`] names.
#[must_use]
pub fn generator() -> String {
    let commit = option_env!("FOREBAY_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.map_or_else(String::new, |commit| format!(", commit {commit}"));
    format!("forebay {}{commit}", env!("CARGO_PKG_VERSION"))
}

/// Everything one invocation produced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: String,
    /// Heading of the page.
    pub title: String,
    /// What wrote this: [`generator`].
    pub generator: String,
    /// The seed every other seed in here derives from.
    pub seed: u64,
    /// In the order they are shown.
    pub experiments: Vec<Experiment>,
}

/// One question, how it was put, and what came out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Short name, unique within the results: `degradation`.
    pub id: String,
    /// Heading.
    pub title: String,
    /// What it asks, in one sentence.
    pub question: String,
    /// How it was run: procedure, load, devices, what is simplified.
    pub method: String,
    /// Seed this experiment ran with.
    pub seed: u64,
    /// Hash over its whole configuration, device files included.
    pub config_hash: String,
    /// The configuration, for a reader; values as text.
    #[serde(default)]
    pub config: BTreeMap<String, String>,
    /// Why there is no result, when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// What to choose in which case, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Finding>,
    /// Sentences, the most important first.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// Figures held against an expectation.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Charts in order.
    #[serde(default)]
    pub charts: Vec<Chart>,
    /// Tables that are no chart's data.
    #[serde(default)]
    pub tables: Vec<Table>,
}

/// Where a number comes from; a reader must never take a fitted figure for a predicted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The description of the device says so: a model with another description would answer
    /// otherwise.
    Input,
    /// A model parameter was chosen so that this figure comes out.
    Fitted,
    /// It follows from the model; nothing was adjusted to it.
    Predicted,
    /// It must hold for any model (conservation, Little's law).
    Invariant,
    /// It follows from a formula.
    Formula,
    /// Others printed it.
    Published,
    /// It was measured on the device itself.
    Measured,
}

/// One sentence of result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The sentence.
    pub text: String,
    /// What it rests on.
    pub basis: Basis,
}

/// A figure against what was expected of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What is compared.
    pub name: String,
    /// Unit of both figures; empty for a ratio.
    pub unit: String,
    /// What it should be.
    pub expected: f64,
    /// What it is.
    pub got: f64,
    /// Allowed |got - expected| / |expected|.
    pub tolerance: f64,
    /// What kind of agreement this is.
    pub basis: Basis,
    /// Where `expected` comes from.
    pub source: String,
    /// What it compares with.
    #[serde(default)]
    pub bound: Bound,
    /// Whether the comparison holds.
    pub pass: bool,
}

impl Check {
    /// Compares, relative to `expected` (absolutely, when that is zero).
    #[must_use]
    pub fn relative(
        name: impl Into<String>,
        unit: impl Into<String>,
        (expected, got): (f64, f64),
        tolerance: f64,
        basis: Basis,
        source: impl Into<String>,
    ) -> Self {
        let scale = if expected == 0.0 { 1.0 } else { expected.abs() };
        let pass = (got - expected).abs() / scale <= tolerance;
        Self {
            name: name.into(),
            unit: unit.into(),
            expected,
            got,
            tolerance,
            basis,
            source: source.into(),
            bound: Bound::Near,
            pass,
        }
    }

    /// Compares one-sided: `got` may be anything from 0 to `limit`.
    #[must_use]
    pub fn at_most(
        name: impl Into<String>,
        unit: impl Into<String>,
        (limit, got): (f64, f64),
        basis: Basis,
        source: impl Into<String>,
    ) -> Self {
        let pass = (0.0..=limit).contains(&got);
        let near = Self::relative(name, unit, (limit, got), 0.0, basis, source);
        Self { bound: Bound::AtMost, pass, ..near }
    }

    /// Compares one-sided: `got` may be `limit` or more.
    #[must_use]
    pub fn at_least(
        name: impl Into<String>,
        unit: impl Into<String>,
        (limit, got): (f64, f64),
        basis: Basis,
        source: impl Into<String>,
    ) -> Self {
        let near = Self::relative(name, unit, (limit, got), 0.0, basis, source);
        Self { bound: Bound::AtLeast, pass: got >= limit, ..near }
    }
}

/// What a check compares with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// `got` lies within the tolerance of `expected`, above or below.
    #[default]
    Near,
    /// `got` lies from 0 to `expected`.
    AtMost,
    /// `got` is `expected` or more.
    AtLeast,
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChartKind {
    /// Lines over a numeric x axis.
    #[default]
    Line,
    /// Upright bars over named x values, grouped by series.
    Bar,
    /// Lying bars, for long names; the first row is the top one.
    Row,
    /// Lying intervals from `low` to `high` with a mark at `y`.
    Interval,
}

/// One axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// What it counts.
    pub label: String,
    /// In which unit; empty for none.
    #[serde(default)]
    pub unit: String,
    /// Whether it is logarithmic.
    #[serde(default)]
    pub log: bool,
}

impl Axis {
    /// A linear axis.
    #[must_use]
    pub fn linear(label: &str, unit: &str) -> Self {
        Self { label: label.into(), unit: unit.into(), log: false }
    }
    /// A logarithmic axis.
    #[must_use]
    pub fn log(label: &str, unit: &str) -> Self {
        Self { label: label.into(), unit: unit.into(), log: true }
    }
}

/// What a series stands for; it decides how it is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// From a model run.
    #[default]
    Simulated,
    /// Printed by others: drawn as hollow marks.
    Published,
    /// From a formula: drawn dashed.
    Formula,
    /// Measured on the device itself.
    Measured,
}

/// A place on the x axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum X {
    /// On a numeric axis.
    Number(f64),
    /// A name.
    Name(String),
}

/// One value, with its interval when it is uncertain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Where.
    pub x: X,
    /// How much; none when unknown.
    pub y: Option<f64>,
    /// Lower end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

impl Point {
    /// On a numeric axis.
    #[must_use]
    pub fn at(x: f64, y: f64) -> Self {
        Self { x: X::Number(x), y: Some(y), low: None, high: None }
    }
    /// Over a name.
    #[must_use]
    pub fn named(x: impl Into<String>, y: Option<f64>) -> Self {
        Self { x: X::Name(x.into()), y, low: None, high: None }
    }
    /// The same point with an interval.
    #[must_use]
    pub fn between(mut self, low: f64, high: f64) -> Self {
        (self.low, self.high) = (Some(low), Some(high));
        self
    }
}

/// Values that belong together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// As the legend shows it.
    pub name: String,
    /// Series of the same group have the same color on the whole page; empty: its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// What it stands for.
    #[serde(default)]
    pub role: Role,
    /// Drawn dashed, to tell two kinds of the same group apart.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dashed: bool,
    /// In the order of x.
    pub points: Vec<Point>,
}

/// A stretch of the x axis with a meaning: an hour of idling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Band {
    /// Start.
    pub from: f64,
    /// End.
    pub to: f64,
    /// What it means.
    pub label: String,
}

/// A level on the y axis with a meaning: a printed figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Level.
    pub y: f64,
    /// What it means.
    pub label: String,
}

/// How many values lie in which range of the values' axis, stretch by stretch: drawn behind the
/// lines of a chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// What is counted: `writes`.
    pub of: String,
    /// Edges of the ranges, rising: a range lies between two edges.
    pub edges: Vec<f64>,
    /// In order of x.
    pub columns: Vec<HistogramColumn>,
}

/// One stretch of the x axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistogramColumn {
    /// Start.
    pub from: f64,
    /// End.
    pub to: f64,
    /// Ranges that hold something, by number from 0, each with its count.
    pub counts: Vec<(u32, u64)>,
}

/// One chart; its table is made from the same series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Unique within its experiment.
    pub id: String,
    /// Heading.
    pub title: String,
    /// What to see in it, and what not to.
    #[serde(default)]
    pub caption: String,
    /// How it is drawn.
    pub kind: ChartKind,
    /// Horizontal (for [`ChartKind::Row`] and [`ChartKind::Interval`]: the names).
    pub x: Axis,
    /// The values' axis.
    pub y: Axis,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Stretches of x.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bands: Vec<Band>,
    /// Levels of y.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// What the lines of [`ChartKind::Line`] sum up, drawn behind them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Histogram>,
    /// How long the requests behind its values took, for charts of rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub responses: Option<Table>,
    /// Seed its data came from.
    pub seed: u64,
    /// Hash of the configuration its data came from.
    pub config_hash: String,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// Unit; empty for none.
    #[serde(default)]
    pub unit: String,
}

impl Column {
    /// A column without unit.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), unit: String::new() }
    }
    /// A column with a unit.
    #[must_use]
    pub fn with_unit(name: &str, unit: &str) -> Self {
        Self { name: name.into(), unit: unit.into() }
    }
}

/// What a cell holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A number.
    Number(f64),
    /// Words.
    Text(String),
    /// Not known; shown as such, never as zero.
    Unknown(()),
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// What it holds.
    pub value: Value,
    /// Whether that speaks for (`true`) or against the thing compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good: Option<bool>,
    /// What it rests on, or a reservation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Cell {
    /// A number.
    #[must_use]
    pub fn number(value: f64) -> Self {
        Self { value: Value::Number(value), good: None, note: String::new() }
    }
    /// Words.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { value: Value::Text(text.into()), good: None, note: String::new() }
    }
    /// Not known.
    #[must_use]
    pub fn unknown() -> Self {
        Self { value: Value::Unknown(()), good: None, note: String::new() }
    }
    /// A number, or unknown.
    #[must_use]
    pub fn maybe(value: Option<f64>) -> Self {
        value.map_or_else(Self::unknown, Self::number)
    }
    /// The same cell, judged.
    #[must_use]
    pub fn judged(mut self, good: bool) -> Self {
        self.good = Some(good);
        self
    }
    /// The same cell with a reservation.
    #[must_use]
    pub fn noted(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Unique within its experiment.
    pub id: String,
    /// Heading.
    pub title: String,
    /// What to see in it.
    #[serde(default)]
    pub caption: String,
    /// Headings; the first column names the row.
    pub columns: Vec<Column>,
    /// Cells, as many as columns.
    pub rows: Vec<Vec<Cell>>,
}
