//! Sweeps: a grid over any parameter of any task.
//!
//! A sweep writes one JSON line a point. It can be stopped and resumed, split over processes, and
//! merged.

use crate::drive::{Cell, Driver};
use crate::error::{ArgumentError, GridError, LabError, one_line};
use crate::task::{Outcome, Task};
use crate::{catalogue, files, hash};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
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

/// Points that a grid may have. Each point is a run of seconds, so more is a mistake.
const MAX_GRID_POINTS: usize = 1_000_000;

fn at(file: &Path) -> impl Fn(GridError) -> LabError + '_ {
    |fault| LabError::Grid { file: file.to_owned(), fault }
}

/// Replaces the value at `path` (`device.media.flash.timing.read_us`, `phases.1.load.minutes`).
/// The last name may be new: a field that the base leaves at its default can be swept. The task's
/// parser refuses a name that no field has.
fn set(tree: &mut Value, path: &str, value: Value) -> Result<(), GridError> {
    let (parent, last) = path.rsplit_once('.').map_or((None, path), |(p, l)| (Some(p), l));
    let mut here = tree;
    for name in parent.iter().flat_map(|parent| parent.split('.')) {
        here = child(here, path, name)?;
    }
    match here {
        Value::Object(fields) => {
            fields.insert(last.to_owned(), value);
        }
        other => *child(other, path, last)? = value,
    }
    Ok(())
}

/// The value `name` inside a table or a list.
fn child<'a>(tree: &'a mut Value, path: &str, name: &str) -> Result<&'a mut Value, GridError> {
    let (path, owned) = (path.to_owned(), name.to_owned());
    match tree {
        Value::Object(fields) => {
            fields.get_mut(name).ok_or(GridError::NoField { path, name: owned })
        }
        Value::Array(items) => {
            let count = items.len();
            let Ok(index) = name.parse::<usize>() else {
                return Err(GridError::NotIndex { path, name: owned });
            };
            items.get_mut(index).ok_or(GridError::NoItem { path, count, index })
        }
        _ => Err(GridError::NotContainer { path, name: owned }),
    }
}

/// Replaces names of devices by their descriptions.
fn resolve(tree: &mut Value) -> Result<(), LabError> {
    for field in ["device", "left", "right", "log"] {
        if let Some(Value::String(name)) = tree.get(field) {
            let page = catalogue::load(name)?;
            tree[field] = serde_json::to_value(page.device).expect("plain data");
        }
    }
    Ok(())
}

/// The JSON form of a TOML value. JSON has no NaN and no infinity.
fn json_of(path: &str, value: &toml::Value) -> Result<Value, GridError> {
    if let Some((path, found)) = not_finite(path, value) {
        return Err(GridError::NotFinite { path, found: found.to_string() });
    }
    serde_json::to_value(value).map_err(|e| GridError::Malformed { detail: one_line(e) })
}

/// The first number in `value` that is not finite, with its path.
fn not_finite(path: &str, value: &toml::Value) -> Option<(String, f64)> {
    let inside = |name: &str, value| not_finite(&format!("{path}.{name}"), value);
    match value {
        toml::Value::Float(number) if !number.is_finite() => Some((path.to_owned(), *number)),
        toml::Value::Array(items) => {
            items.iter().enumerate().find_map(|(i, item)| inside(&i.to_string(), item))
        }
        toml::Value::Table(fields) => fields.iter().find_map(|(name, item)| inside(name, item)),
        _ => None,
    }
}

impl Grid {
    fn read(file: &Path) -> Result<Self, LabError> {
        let table: toml::Table = files::read_named(file)?
            .parse()
            .map_err(|e: toml::de::Error| at(file)(GridError::Malformed { detail: one_line(e) }))?;
        Self::of(file, &table)
    }

    /// The grid of a table; `file` names it in errors.
    fn of(file: &Path, table: &toml::Table) -> Result<Self, LabError> {
        let known = ["name", "task", "base", "grid"];
        if let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(at(file)(GridError::UnknownKey { key: key.clone() }));
        }
        let text = |key: &'static str| {
            let value = table.get(key).and_then(toml::Value::as_str);
            value.ok_or_else(|| at(file)(GridError::NotText { key }))
        };
        let (name, kind) = (text("name")?.to_owned(), text("task")?.to_owned());
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || !name.chars().all(plain) {
            return Err(at(file)(GridError::Name));
        }
        let base = table.get("base").ok_or(GridError::NoBase).map_err(at(file))?;
        let base = json_of("base", base).map_err(at(file))?;
        let axes = axes(table).map_err(at(file))?;
        let count = axes.iter().try_fold(1usize, |n, (_, v)| n.checked_mul(v.len()));
        let count = count
            .filter(|n| *n <= MAX_GRID_POINTS)
            .ok_or(GridError::TooManyPoints { limit: MAX_GRID_POINTS })
            .map_err(at(file))?;
        let points = (0..count)
            .map(|index| point(file, &kind, &base, &axes, index))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { name, points })
    }

    /// Lines of this grid's points that this build of the program has written already.
    fn found(&self, out: &Path, program: &str) -> Result<BTreeMap<usize, String>, LabError> {
        // Points may be alike: values that say the same, such as two names of one device.
        let mut by_hash: BTreeMap<&str, Vec<&Point>> = BTreeMap::new();
        for point in &self.points {
            by_hash.entry(&point.hash).or_default().push(point);
        }
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
                if value["program"].as_str() != Some(program) {
                    continue;
                }
                let points = value["hash"].as_str().and_then(|hash| by_hash.get(hash));
                for point in points.into_iter().flatten() {
                    found.insert(point.index, line_in_place(point, line, &value));
                }
            }
        }
        Ok(found)
    }
}

/// The line of `point` that `line` gives. Its place and its swept values are those of another
/// point where points are alike, and of another grid where the file of the sweep has changed.
fn line_in_place(point: &Point, line: &str, value: &Value) -> String {
    let mut place = json!({ "index": point.index, "point": point.values });
    forebay_report::round_all(&mut place);
    if ["index", "point"].iter().all(|key| value[key] == place[key]) {
        return line.to_owned();
    }
    let mut moved = value.clone();
    for key in ["index", "point"] {
        moved[key] = place[key].take();
    }
    moved.to_string()
}

fn axes(table: &toml::Table) -> Result<Vec<(String, Vec<Value>)>, GridError> {
    let Some(grid) = table.get("grid") else { return Ok(Vec::new()) };
    let grid = grid.as_table().ok_or(GridError::NotTable)?;
    let mut axes = Vec::new();
    for (path, values) in grid {
        let list = values.as_array().filter(|v| !v.is_empty());
        let list = list.ok_or_else(|| GridError::NotValues { path: path.clone() })?;
        let values = list.iter().map(|v| json_of(path, v)).collect::<Result<Vec<_>, _>>()?;
        axes.push((path.clone(), values));
    }
    // By name, so that the order of points does not depend on how a table is kept.
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
        set(&mut tree, path, value.clone()).map_err(at(file))?;
    }
    resolve(&mut tree)?;
    for (path, value) in parts {
        set(&mut tree, path, value.clone()).map_err(at(file))?;
    }
    let task = task_of(file, kind, tree, index)?;
    Ok(Point { index, hash: hash::of(&task), values, task })
}

/// The task of a point, with what its traces hold now.
fn task_of(file: &Path, kind: &str, tree: Value, index: usize) -> Result<Task, LabError> {
    let mut task: Task = serde_json::from_value(json!({ kind: tree }))
        .map_err(|e| at(file)(GridError::Point { index, detail: one_line(e) }))?;
    if let Task::Timeline(timeline) = &mut task {
        timeline.note_digests()?;
    }
    Ok(task)
}

/// The one task of a file without a grid.
pub(crate) fn read_task(file: &Path) -> Result<Task, LabError> {
    let grid = Grid::read(file)?;
    match <[Point; 1]>::try_from(grid.points) {
        Ok([point]) => Ok(point.task),
        Err(points) => Err(at(file)(GridError::NotOnePoint { points: points.len() })),
    }
}

/// `2/8` as (1, 8): zero-based part and number of parts.
fn shard_of(text: Option<&str>) -> Result<(usize, usize), ArgumentError> {
    let Some(text) = text else { return Ok((0, 1)) };
    let parts = text.split_once('/');
    let number = |text: &str| text.parse::<usize>().ok();
    let parsed = parts.and_then(|(i, n)| Some((number(i)?, number(n)?)));
    match parsed {
        Some((i, n)) if 1 <= i && i <= n => Ok((i - 1, n)),
        _ => Err(ArgumentError::Shard { value: text.to_owned() }),
    }
}

/// Runs the part asked for, or puts all parts together.
pub fn run(args: &Args) -> Result<(), LabError> {
    run_as(args, &files::program_fingerprint())
}

/// [`run`] for a build of the program: lines of other builds do not count.
fn run_as(args: &Args, program: &str) -> Result<(), LabError> {
    let (part, parts) = shard_of(args.shard.as_deref())?;
    if args.threads == Some(0) {
        return Err(ArgumentError::Zero { option: "--threads" }.into());
    }
    let grid = Grid::read(&args.file)?;
    files::make_dir(&args.out)?;
    let found = grid.found(&args.out, program)?;
    if args.merge {
        return merge(args, &grid, &found);
    }
    let mine: Vec<&Point> = grid.points.iter().filter(|p| p.index % parts == part).collect();
    let (done, todo): (Vec<&Point>, Vec<&Point>) =
        mine.into_iter().partition(|p| found.contains_key(&p.index));
    let path = args.out.join(format!("{}.shard-{}-of-{parts}.jsonl", grid.name, part + 1));
    run_points(args, program, &todo, &path)?;
    if !args.quiet {
        let all = todo.len() + done.len();
        let (ran, there) = (todo.len(), done.len());
        files::print(&format!("{}: {ran} run, {there} of {all} were there\n", path.display()))?;
    }
    Ok(())
}

/// Runs every point of a grid that is a table of this program rather than a file, on so many
/// threads (0: one a core). Returns what a sweep writes of each, in the order of the grid; `name`
/// stands for the file in errors.
///
/// # Errors
/// The table is no grid, or a task cannot run.
pub fn outcomes(name: &str, table: &toml::Table, threads: usize) -> Result<Vec<Value>, LabError> {
    let grid = Grid::of(Path::new(name), table)?;
    let mut driver = Driver::new(None, false, true)?;
    driver.threads = threads;
    let cells: Vec<Cell> = grid.points.iter().map(cell_of).collect();
    let outcomes = driver.all("sweep", &cells)?;
    Ok(grid.points.iter().zip(&outcomes).map(|(point, outcome)| line_of(point, outcome)).collect())
}

fn cell_of(point: &Point) -> Cell {
    Cell::new(Value::Object(point.values.clone()).to_string(), point.task.clone())
}

/// What is written of a point.
fn line_of(point: &Point, outcome: &Outcome) -> Value {
    let mut line = json!({
        "hash": point.hash,
        "index": point.index,
        "point": point.values,
        "outcome": outcome,
    });
    forebay_report::round_all(&mut line);
    line
}

/// Runs points and appends a line for each to the file at `path`.
fn run_points(args: &Args, program: &str, points: &[&Point], path: &Path) -> Result<(), LabError> {
    let torn = files::read_if_there(path)?.is_some_and(|b| b.last().is_some_and(|c| *c != b'\n'));
    let mut file = files::append(path)?;
    if torn {
        files::add_line(&mut file, path, "")?;
    }
    let file = Mutex::new(file);
    let cells: Vec<Cell> = points.iter().map(|point| cell_of(point)).collect();
    let mut driver = Driver::new(None, false, args.quiet)?;
    driver.threads = args.threads.unwrap_or(0);
    driver.each("sweep", &cells, &|i, outcome| {
        let mut line = line_of(points[i], outcome);
        line["program"] = program.into();
        let mut file = file.lock().expect("no panic holds it");
        files::add_line(&mut file, path, &line.to_string())
    })?;
    Ok(())
}

fn merge(args: &Args, grid: &Grid, found: &BTreeMap<usize, String>) -> Result<(), LabError> {
    if let Some(first) = grid.points.iter().find(|p| !found.contains_key(&p.index)) {
        return Err(LabError::MissingPoints {
            missing: grid.points.len() - found.len(),
            total: grid.points.len(),
            first: first.index,
        });
    }
    let path = args.out.join(format!("{}.jsonl", grid.name));
    let text: String = found.values().map(|line| format!("{line}\n")).collect();
    files::replace(&path, &text)?;
    if !args.quiet {
        files::print(&format!("{}: {} points\n", path.display(), found.len()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
