//! Tasks, grids, experiments and devices from plain data (JSON), as the command line has them.

use forebay_flash::DeviceSpec;
use forebay_lab::{LabError, catalogue, simulate, sweep};
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;

/// A task that does not run.
#[derive(Debug)]
pub enum TaskError {
    /// The text is not JSON, or has a number without bounds.
    Json(serde_json::Error),
    /// A value has no form in a task.
    NoValue {
        /// Where it is: `phases.1.load`.
        path: String,
    },
    /// The lab refuses it.
    Lab(LabError),
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(cause) => write!(f, "this is not plain data: {cause}"),
            Self::NoValue { path } => write!(f, "{path} is no value that a task can have"),
            Self::Lab(cause) => cause.fmt(f),
        }
    }
}

impl std::error::Error for TaskError {}

impl From<LabError> for TaskError {
    fn from(cause: LabError) -> Self {
        Self::Lab(cause)
    }
}

/// What a request for an experiment may say.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Its name, or `all`.
    pub experiment: String,
    /// Devices by name or file; none stands for the experiment's own.
    pub devices: Vec<String>,
    /// Where finished runs are kept.
    pub out: PathBuf,
    /// The seed.
    pub seed: u64,
    /// Scale of models, 0 for automatic.
    pub scale: u32,
    /// Whether the small edition is asked for.
    pub small: bool,
    /// Threads, 0 for one a core.
    pub threads: usize,
}

/// The TOML form of a JSON value: tasks are read from TOML.
fn toml_of(path: &str, value: &Value) -> Result<toml::Value, TaskError> {
    let no_value = || TaskError::NoValue { path: path.to_owned() };
    let inside = |name: &str, value| toml_of(&format!("{path}.{name}"), value);
    Ok(match value {
        Value::Null => return Err(no_value()),
        Value::Bool(flag) => (*flag).into(),
        Value::String(text) => text.as_str().into(),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => whole.into(),
            None if number.is_f64() => number.as_f64().ok_or_else(no_value)?.into(),
            None => return Err(no_value()),
        },
        Value::Array(items) => {
            let items = items.iter().enumerate().map(|(i, item)| inside(&i.to_string(), item));
            toml::Value::Array(items.collect::<Result<_, _>>()?)
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, item)| Ok((name.clone(), inside(name, item)?)));
            toml::Value::Table(fields.collect::<Result<_, TaskError>>()?)
        }
    })
}

/// Runs a grid over a task: `base` and `grid` are JSON objects, as a sweep's file has them. Returns
/// what a sweep writes of each point, as a JSON list.
///
/// # Errors
/// The data is no grid, or a task cannot run.
pub fn grid(kind: &str, base: &str, grid: &str, threads: usize) -> Result<String, TaskError> {
    let parse = |name: &str, text: &str| {
        let value: Value = serde_json::from_str(text).map_err(TaskError::Json)?;
        toml_of(name, &value)
    };
    let mut table = toml::Table::new();
    table.insert("name".into(), "task".into());
    table.insert("task".into(), kind.into());
    table.insert("base".into(), parse("task", base)?);
    table.insert("grid".into(), parse("grid", grid)?);
    Ok(Value::Array(sweep::outcomes("task", &table, threads)?).to_string())
}

/// The results of an experiment as JSON, as the command writes them.
///
/// # Errors
/// There is no such experiment or device, or runs cannot be kept.
pub fn experiment(wish: &Wish) -> Result<String, TaskError> {
    let args = simulate::Args {
        devices: wish.devices.clone(),
        out: wish.out.clone(),
        seed: Some(wish.seed),
        scale: (wish.scale > 0).then_some(wish.scale),
        small: wish.small,
        threads: (wish.threads > 0).then_some(wish.threads),
        json: true,
        ..simulate::Args::default()
    };
    Ok(forebay_report::to_json(&simulate::results_of(&args, &wish.experiment)?))
}

/// The page of a device, by name or file, as JSON.
///
/// # Errors
/// There is no such device, or its page is malformed.
pub fn page(name: &str) -> Result<String, TaskError> {
    let page = catalogue::load(name)?;
    serde_json::to_string(&page).map_err(TaskError::Json)
}

/// The description of a device from JSON.
///
/// # Errors
/// The text is no description. Impossible numbers are found when the model is built.
pub fn device(text: &str) -> Result<DeviceSpec, TaskError> {
    serde_json::from_str(text).map_err(TaskError::Json)
}

#[cfg(test)]
mod tests;
