//! Driver of many runs: on all cores, with each outcome kept on disk, so that a run can resume.

use crate::task::{Outcome, Task};
use crate::{LabError, files, hash};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// One independent run.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// What the progress bar says.
    pub label: String,
    /// What to run.
    pub task: Task,
}

impl Cell {
    pub(crate) fn new(label: impl Into<String>, task: Task) -> Self {
        Self { label: label.into(), task }
    }
}

/// An outcome as it is kept: with everything that decides whether it may be used again.
#[derive(Serialize, Deserialize)]
struct Kept {
    program: String,
    task: serde_json::Value,
    outcome: serde_json::Value,
}

/// Where cells run and where their outcomes are kept.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    /// Directory of kept outcomes; none keeps nothing.
    pub keep: Option<PathBuf>,
    /// Run again what is already there.
    pub fresh: bool,
    /// Draw no progress.
    pub quiet: bool,
    /// Threads; 0: as many as there are cores.
    pub threads: usize,
    program: String,
}

impl Driver {
    pub(crate) fn new(keep: Option<PathBuf>, fresh: bool, quiet: bool) -> Result<Self, LabError> {
        if let Some(dir) = &keep {
            files::make_dir(dir)?;
        }
        let program =
            if keep.is_some() { files::program_fingerprint() } else { "not kept".to_owned() };
        Ok(Self { keep, fresh, quiet, threads: 0, program })
    }

    fn path_of(&self, task: &Task) -> Option<PathBuf> {
        Some(self.keep.as_ref()?.join(format!("{}.json", hash::of(task))))
    }

    fn kept(&self, task: &Task) -> Result<Option<Outcome>, LabError> {
        let Some(path) = self.path_of(task).filter(|_| !self.fresh) else { return Ok(None) };
        let Some(bytes) = files::read_if_there(&path)? else { return Ok(None) };
        // A file from another build, or damaged, is run again rather than trusted.
        let Ok(kept) = serde_json::from_slice::<Kept>(&bytes) else { return Ok(None) };
        let same = kept.program == self.program
            && serde_json::to_value(task).is_ok_and(|value| value == kept.task);
        Ok(if same { serde_json::from_value(kept.outcome).ok() } else { None })
    }

    /// One cell, from disk when it is there.
    pub(crate) fn one(&self, task: &Task) -> Result<Outcome, LabError> {
        if let Some(outcome) = self.kept(task)? {
            return Ok(outcome);
        }
        let outcome = task.run()?;
        let value = serde_json::to_value(&outcome).expect("outcomes are plain data");
        let text = value.to_string();
        if let Some(path) = self.path_of(task) {
            let task = serde_json::to_value(task).expect("tasks are plain data");
            let kept = Kept { program: self.program.clone(), task, outcome: value };
            let text = serde_json::to_string(&kept).expect("plain data");
            files::replace(&path, &text)?;
        }
        // Through text even when nothing is kept: a run that goes on from disk must see the very
        // same numbers as one that did not stop.
        serde_json::from_str(&text).map_err(|cause| LabError::OutcomeUnreadable { cause })
    }

    /// All cells, in their order; equal tasks run once. The first error stops the rest.
    pub(crate) fn all(&self, title: &str, cells: &[Cell]) -> Result<Vec<Outcome>, LabError> {
        self.each(title, cells, &|_, _| Ok(()))
    }

    /// As [`Driver::all`], and tells `done` of each outcome as soon as it is there, in any order
    /// and from any thread.
    pub(crate) fn each(
        &self,
        title: &str,
        cells: &[Cell],
        tell: &(dyn Fn(usize, &Outcome) -> Result<(), LabError> + Sync),
    ) -> Result<Vec<Outcome>, LabError> {
        let names: Vec<String> = cells.iter().map(|c| hash::of(&c.task)).collect();
        let firsts: Vec<usize> =
            (0..cells.len()).filter(|&i| !names[..i].contains(&names[i])).collect();
        let bar = self.bar(title, firsts.len());
        let done: Vec<Mutex<Option<Outcome>>> = cells.iter().map(|_| Mutex::new(None)).collect();
        let error: Mutex<Option<LabError>> = Mutex::new(None);
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let turn = next.fetch_add(1, Ordering::Relaxed);
                let Some(&i) = firsts.get(turn) else { break };
                bar.set_message(cells[i].label.clone());
                let outcome = self.one(&cells[i].task);
                match outcome.and_then(|outcome| tell(i, &outcome).map(|()| outcome)) {
                    Ok(outcome) => *done[i].lock().expect("no panic holds it") = Some(outcome),
                    Err(why) => {
                        error.lock().expect("no panic holds it").get_or_insert(why);
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                bar.inc(1);
            }
        };
        let cores = match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            some => some,
        };
        // Threads of the tool, not of the engine: models share nothing, each cell is one thread's
        // from start to end, and results are put together by index.
        std::thread::scope(|scope| {
            for _ in 1..cores.min(firsts.len()) {
                scope.spawn(work);
            }
            work();
        });
        bar.finish_and_clear();
        if let Some(why) = error.into_inner().expect("threads are joined") {
            return Err(why);
        }
        let done: Vec<Option<Outcome>> =
            done.into_iter().map(|slot| slot.into_inner().expect("threads are joined")).collect();
        let of = |i: usize| {
            let first = names.iter().position(|n| *n == names[i]).expect("its own name is there");
            done[first].clone().expect("every first cell has run")
        };
        Ok((0..cells.len()).map(of).collect())
    }

    fn bar(&self, title: &str, cells: usize) -> ProgressBar {
        let target =
            if self.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(cells as u64), target);
        let style = "{prefix:12} {bar:30} {pos}/{len} {elapsed}, {eta} left  {msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_prefix(title.to_owned());
        bar
    }
}
