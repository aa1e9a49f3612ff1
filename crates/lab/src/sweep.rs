//! A grid over any parameter of any run: JSON lines that can be resumed, split and put together.

use crate::drive::{Cell, Driver};
use crate::task::Task;
use crate::{LabError, files, hash, simulate};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// What `forebay simulate sweep` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The grid, as TOML
    pub file: PathBuf,
    /// Where the lines go
    #[arg(long, value_name = "DIR", default_value = "forebay-simulate")]
    pub out: PathBuf,
    /// Run only part I of N
    #[arg(long, value_name = "I/N")]
    pub shard: Option<String>,
    /// Put the parts together
    #[arg(long)]
    pub merge: bool,
    /// Threads [default: one a core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Draw no progress
    #[arg(long)]
    pub quiet: bool,
}

/// One point of the grid.
struct Point {
    index: usize,
    hash: String,
    values: Map<String, Value>,
    task: Task,
}

/// A grid with its points in order: the last parameter, by name, runs fastest.
struct Grid {
    name: String,
    points: Vec<Point>,
}

/// More is a mistake: each point is a run of seconds.
const MOST_POINTS: usize = 1_000_000;

fn bad(file: &Path, why: impl std::fmt::Display) -> LabError {
    LabError::usage(format!("{}: {why}", file.display()))
}

/// Replaces the value at `path` (`device.media.flash.timing.read_us`, `phases.1.load.minutes`).
/// The last name may be new, so that a field left at its default can be swept; whether it exists
/// at all is decided when the task is read.
fn set(tree: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let mut here = tree;
    let mut names = path.split('.').peekable();
    while let Some(name) = names.next() {
        let last = names.peek().is_none();
        here = match here {
            Value::Object(fields) if last => {
                fields.insert(name.to_owned(), value);
                return Ok(());
            }
            Value::Object(fields) => fields
                .get_mut(name)
                .ok_or_else(|| format!("'{path}': there is no '{name}' in the base"))?,
            Value::Array(items) => {
                let count = items.len();
                let index: usize =
                    name.parse().map_err(|_| format!("'{path}': '{name}' is not a number"))?;
                let item = items
                    .get_mut(index)
                    .ok_or_else(|| format!("'{path}': there are {count} items, no {index}"))?;
                if last {
                    *item = value;
                    return Ok(());
                }
                item
            }
            _ => return Err(format!("'{path}': nothing can be inside '{name}'")),
        };
    }
    Err("an empty name".to_owned())
}

/// Names of devices become their descriptions.
fn resolve(tree: &mut Value) -> Result<(), LabError> {
    for field in ["device", "left", "right"] {
        if let Some(Value::String(name)) = tree.get(field) {
            let page = simulate::device(name)?;
            tree[field] = serde_json::to_value(page.device).expect("plain data");
        }
    }
    Ok(())
}

impl Grid {
    fn read(file: &Path) -> Result<Self, LabError> {
        let table: toml::Table =
            files::read_named(file)?.parse().map_err(|e: toml::de::Error| bad(file, e))?;
        let known = |key: &&String| ["name", "task", "base", "grid"].contains(&key.as_str());
        if let Some(key) = table.keys().find(|key| !known(key)) {
            return Err(bad(
                file,
                format!("unknown key '{key}'; there are name, task, base, grid"),
            ));
        }
        let text = |key: &str| {
            let value = table.get(key).and_then(toml::Value::as_str);
            value.ok_or_else(|| bad(file, format!("'{key}' must be a text")))
        };
        let (name, kind) = (text("name")?.to_owned(), text("task")?.to_owned());
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || !name.chars().all(plain) {
            return Err(bad(file, "'name' may have letters, digits, '-' and '_' only"));
        }
        let base = table.get("base").cloned();
        let base = base.ok_or_else(|| bad(file, "a [base] is needed"))?;
        let base = serde_json::to_value(base).map_err(|e| bad(file, e))?;
        let axes = axes(file, &table)?;
        let count = axes.iter().try_fold(1usize, |n, (_, v)| n.checked_mul(v.len()));
        let count = count.filter(|n| *n <= MOST_POINTS);
        let count = count.ok_or_else(|| bad(file, format!("more than {MOST_POINTS} points")))?;
        let points = (0..count)
            .map(|index| point(file, &kind, &base, &axes, index))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { name, points })
    }

    /// Lines of this grid's points that are already there, whoever wrote them.
    fn found(&self, out: &Path) -> Result<BTreeMap<usize, String>, LabError> {
        let by_hash: BTreeMap<&str, usize> =
            self.points.iter().map(|p| (p.hash.as_str(), p.index)).collect();
        let mut found = BTreeMap::new();
        let prefix = format!("{}.shard-", self.name);
        for path in files::list(out)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !(name.starts_with(&prefix) && name.ends_with(".jsonl")) {
                continue;
            }
            let bytes = files::read_if_there(&path)?.unwrap_or_default();
            for line in String::from_utf8_lossy(&bytes).lines() {
                // A line torn by a kill does not parse: its point is run again.
                let Ok(value) = serde_json::from_str::<Value>(line) else { continue };
                let same = value["version"] == json!(env!("CARGO_PKG_VERSION"));
                let index = value["hash"].as_str().and_then(|hash| by_hash.get(hash));
                if let Some(index) = index.filter(|_| same) {
                    found.insert(*index, line.to_owned());
                }
            }
        }
        Ok(found)
    }
}

fn axes(file: &Path, table: &toml::Table) -> Result<Vec<(String, Vec<Value>)>, LabError> {
    let Some(grid) = table.get("grid") else { return Ok(Vec::new()) };
    let grid = grid.as_table().ok_or_else(|| bad(file, "[grid] must be a table"))?;
    let mut axes = Vec::new();
    for (path, values) in grid {
        let values = values.as_array().filter(|v| !v.is_empty());
        let values =
            values.ok_or_else(|| bad(file, format!("grid '{path}' must be a list of values")))?;
        let values = values
            .iter()
            .map(|v| serde_json::to_value(v).map_err(|e| bad(file, e)))
            .collect::<Result<Vec<_>, _>>()?;
        axes.push((path.clone(), values));
    }
    // By name, so that the order of points does not hang on how a table is kept.
    axes.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(axes)
}

fn point(
    file: &Path,
    kind: &str,
    base: &Value,
    axes: &[(String, Vec<Value>)],
    index: usize,
) -> Result<Point, LabError> {
    let mut values = Map::new();
    let mut rest = index;
    for (path, choices) in axes.iter().rev() {
        values.insert(path.clone(), choices[rest % choices.len()].clone());
        rest /= choices.len();
    }
    let mut tree = base.clone();
    // Whole devices first: other parameters may reach into them.
    let (whole, parts): (Vec<_>, Vec<_>) = values.iter().partition(|(path, _)| !path.contains('.'));
    for (path, value) in whole {
        set(&mut tree, path, value.clone()).map_err(|e| bad(file, e))?;
    }
    resolve(&mut tree)?;
    for (path, value) in parts {
        set(&mut tree, path, value.clone()).map_err(|e| bad(file, e))?;
    }
    let task: Task = serde_json::from_value(json!({ kind: tree }))
        .map_err(|e| bad(file, format!("point {index}: {e}")))?;
    Ok(Point { index, hash: hash::of(&task), values, task })
}

/// `2/8` as (1, 8): zero-based part and number of parts.
fn shard_of(text: Option<&str>) -> Result<(usize, usize), LabError> {
    let Some(text) = text else { return Ok((0, 1)) };
    let parts = text.split_once('/');
    let number = |text: &str| text.parse::<usize>().ok();
    let parsed = parts.and_then(|(i, n)| Some((number(i)?, number(n)?)));
    match parsed {
        Some((i, n)) if 1 <= i && i <= n => Ok((i - 1, n)),
        _ => Err(LabError::usage(format!("--shard {text}: write I/N with I from 1 to N"))),
    }
}

/// Runs the part asked for, or puts all parts together.
pub fn run(args: &Args) -> Result<(), LabError> {
    let (part, parts) = shard_of(args.shard.as_deref())?;
    if args.threads == Some(0) {
        return Err(LabError::usage("--threads must be at least 1"));
    }
    let grid = Grid::read(&args.file)?;
    files::make_dir(&args.out)?;
    if args.merge {
        return merge(args, &grid);
    }
    let found: BTreeSet<usize> = grid.found(&args.out)?.into_keys().collect();
    let mine = |p: &&Point| p.index % parts == part;
    let todo: Vec<&Point> =
        grid.points.iter().filter(mine).filter(|p| !found.contains(&p.index)).collect();
    let path = args.out.join(format!("{}.shard-{}-of-{parts}.jsonl", grid.name, part + 1));
    let torn = files::read_if_there(&path)?.is_some_and(|b| b.last().is_some_and(|c| *c != b'\n'));
    let file = Mutex::new(files::append(&path)?);
    if torn {
        files::add_line(&mut file.lock().expect("nobody else yet"), &path, "")?;
    }
    let cells: Vec<Cell> = todo
        .iter()
        .map(|p| Cell::new(Value::Object(p.values.clone()).to_string(), p.task.clone()))
        .collect();
    let mut driver = Driver::new(None, false, args.quiet)?;
    driver.threads = args.threads.unwrap_or(0);
    driver.each("sweep", &cells, &|i, outcome| {
        let point = todo[i];
        let mut line = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "hash": point.hash,
            "index": point.index,
            "point": point.values,
            "outcome": outcome,
        });
        forebay_report::round_all(&mut line);
        let mut file = file.lock().expect("no panic holds it");
        files::add_line(&mut file, &path, &line.to_string())
    })?;
    if !args.quiet {
        let all = grid.points.iter().filter(mine).count();
        println!(
            "{}: {} run, {} of {all} were there",
            path.display(),
            todo.len(),
            all - todo.len()
        );
    }
    Ok(())
}

fn merge(args: &Args, grid: &Grid) -> Result<(), LabError> {
    let found = grid.found(&args.out)?;
    let missing = grid.points.len() - found.len();
    if missing > 0 {
        let first = grid.points.iter().find(|p| !found.contains_key(&p.index));
        return Err(LabError::failed(format!(
            "{missing} of {} points are missing, the first is number {}; run them, then merge",
            grid.points.len(),
            first.map_or(0, |p| p.index),
        )));
    }
    let path = args.out.join(format!("{}.jsonl", grid.name));
    let text: String = found.values().map(|line| format!("{line}\n")).collect();
    files::replace(&path, &text)?;
    if !args.quiet {
        println!("{}: {} points", path.display(), found.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
