//! The extension module `forebay_simulate._native`: what the Python package is made of.

use crate::player::{Completions, PlayError, Player, Requests};
use crate::tasks::{self, TaskError, Wish};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::create_exception;
use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

create_exception!(
    forebay_simulate,
    SimulateError,
    PyValueError,
    "A device, a request or a task that makes no sense. The text is one line."
);

fn refused(why: impl std::fmt::Display) -> PyErr {
    SimulateError::new_err(why.to_string())
}

impl From<PlayError> for PyErr {
    fn from(why: PlayError) -> Self {
        match why {
            PlayError::Interrupted => PyKeyboardInterrupt::new_err(()),
            other => refused(other),
        }
    }
}

impl From<TaskError> for PyErr {
    fn from(why: TaskError) -> Self {
        refused(why)
    }
}

/// Whether no signal asks the program to stop.
fn goes_on() -> bool {
    Python::attach(|py| py.check_signals().is_ok())
}

/// Submitted, completed and status, as arrays.
type Columns<'py> =
    (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<u8>>);

/// Columns of requests as Python hands them over, contiguous and of these types.
#[derive(FromPyObject)]
struct RequestArrays<'py> {
    op: PyReadonlyArray1<'py, u8>,
    lba: PyReadonlyArray1<'py, i64>,
    blocks: PyReadonlyArray1<'py, i64>,
    fua: PyReadonlyArray1<'py, bool>,
    stream: PyReadonlyArray1<'py, u8>,
    stored: PyReadonlyArray1<'py, u16>,
    block_bytes: u32,
}

/// A model of a device.
#[pyclass(frozen, module = "forebay_simulate._native")]
struct Model {
    player: Mutex<Player>,
}

impl Model {
    /// Plays requests without holding the interpreter.
    fn play(
        &self,
        py: Python<'_>,
        arrays: &RequestArrays<'_>,
        run: impl Send + FnOnce(&mut Player, &Requests<'_>) -> Result<Completions, PlayError>,
    ) -> PyResult<Completions> {
        let requests = Requests {
            ops: arrays.op.as_slice()?,
            lbas: arrays.lba.as_slice()?,
            blocks: arrays.blocks.as_slice()?,
            block_bytes: arrays.block_bytes,
            fua: arrays.fua.as_slice()?,
            streams: arrays.stream.as_slice()?,
            stored: arrays.stored.as_slice()?,
        };
        let player = &self.player;
        let done = py.detach(move || {
            let mut player = player.lock().unwrap_or_else(PoisonError::into_inner);
            run(&mut player, &requests)
        })?;
        Ok(done)
    }

    fn read<T: Send>(&self, py: Python<'_>, of: impl Send + FnOnce(&Player) -> T) -> T {
        let player = &self.player;
        py.detach(move || of(&player.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn columns(py: Python<'_>, done: Completions) -> Columns<'_> {
    let Completions { submitted_ns, completed_ns, statuses } = done;
    (submitted_ns.into_pyarray(py), completed_ns.into_pyarray(py), statuses.into_pyarray(py))
}

#[pymethods]
impl Model {
    #[new]
    fn new(device: &str, scale: u32, seed: u64) -> PyResult<Self> {
        let device = tasks::device(device)?;
        let player = Player::new(&device, scale, seed).map_err(refused)?;
        Ok(Self { player: Mutex::new(player) })
    }

    #[getter]
    fn name(&self, py: Python<'_>) -> String {
        self.read(py, |player| player.model().name().to_owned())
    }

    #[getter]
    fn capacity_bytes(&self, py: Python<'_>) -> u64 {
        self.read(py, |player| player.model().identity().capacity_bytes)
    }

    #[getter]
    fn queue_depth(&self, py: Python<'_>) -> u32 {
        self.read(py, |player| player.model().identity().queue_depth)
    }

    #[getter]
    fn volatile_cache(&self, py: Python<'_>) -> bool {
        self.read(py, |player| player.model().identity().volatile_cache)
    }

    #[getter]
    fn scale(&self, py: Python<'_>) -> f64 {
        self.read(py, Player::scale)
    }

    #[getter]
    fn now_ns(&self, py: Python<'_>) -> u64 {
        self.read(py, Player::now_ns)
    }

    fn digest(&self, py: Python<'_>) -> String {
        self.read(py, |player| format!("{:016x}", player.model().digest()))
    }

    fn play_at<'py>(
        &self,
        py: Python<'py>,
        time_ns: PyReadonlyArray1<'py, i64>,
        requests: RequestArrays<'py>,
    ) -> PyResult<Columns<'py>> {
        let times_ns = time_ns.as_slice()?;
        let done = self.play(py, &requests, |player, requests| {
            player.play_at(times_ns, requests, &mut goes_on)
        })?;
        Ok(columns(py, done))
    }

    fn play_closed<'py>(
        &self,
        py: Python<'py>,
        outstanding: usize,
        requests: RequestArrays<'py>,
    ) -> PyResult<Columns<'py>> {
        let done = self.play(py, &requests, |player, requests| {
            player.play_closed(outstanding, requests, &mut goes_on)
        })?;
        Ok(columns(py, done))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.read(py, Player::counters);
        let dict = PyDict::new(py);
        for (name, count) in [
            ("now_ns", stats.now.0),
            ("reads", stats.reads),
            ("writes", stats.writes),
            ("flushes", stats.flushes),
            ("trims", stats.trims),
            ("read_bytes", stats.read_bytes),
            ("written_bytes", stats.written_bytes),
            ("media_written_bytes", stats.media_written_bytes),
            ("read_modify_writes", stats.read_modify_writes),
            ("link_retries", stats.link_retries),
        ] {
            dict.set_item(name, count)?;
        }
        for (name, figure) in [
            ("write_amplification", stats.write_amplification()),
            ("utilization", stats.media_utilization()),
            ("mean_outstanding", stats.mean_outstanding()),
            ("energy_j", stats.energy_j),
            ("erase_mean", stats.wear.mean),
            ("erase_deviation", stats.wear.deviation),
        ] {
            dict.set_item(name, figure)?;
        }
        Ok(dict)
    }
}

/// Runs a grid over a task; one point where the grid is empty.
#[pyfunction]
fn grid(py: Python<'_>, kind: &str, base: &str, axes: &str, threads: usize) -> PyResult<String> {
    Ok(py.detach(|| tasks::grid(kind, base, axes, threads))?)
}

/// The results of an experiment.
#[pyfunction]
#[pyo3(signature = (name, *, devices, out, seed, scale, small, threads))]
#[allow(clippy::too_many_arguments, reason = "names in Python, which the package gives defaults")]
fn experiment(
    py: Python<'_>,
    name: String,
    devices: Vec<String>,
    out: PathBuf,
    seed: u64,
    scale: u32,
    small: bool,
    threads: usize,
) -> PyResult<String> {
    let wish = Wish { experiment: name, devices, out, seed, scale, small, threads };
    Ok(py.detach(|| tasks::experiment(&wish))?)
}

/// The catalogue, with its version.
#[pyfunction]
fn catalogue() -> String {
    forebay_lab::catalogue::list_json()
}

/// The page of a device, by name or file.
#[pyfunction]
fn page(name: &str) -> PyResult<String> {
    Ok(tasks::page(name)?)
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{Model, SimulateError, catalogue, experiment, grid, page};
    use forebay_lab::simulate::DEFAULT_SEED as SEED;

    /// The seed when none is given.
    #[pymodule_export]
    const DEFAULT_SEED: u64 = SEED;
    /// The version of the crates.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
