//! The drive's own counters, read by smartctl and nvme-cli where they are installed.
//!
//! What enters: a disk. What leaves: readings, or one line that says why there are none. What
//! always holds: a drive that gave no reading is not asked again. Who calls: `qualify`.

use std::cell::{Cell, RefCell};

use forebay_qualify::{Health, Reading};
use forebay_rt as rt;
use forebay_units::Nanos;

use super::tools::{self, Printed, ToolError};

/// A disk's counters.
pub struct Counters {
    /// `/dev/NAME`; `None` for what is no disk.
    disk: Option<String>,
    is_readable: Cell<bool>,
    read_at: Cell<Option<Nanos>>,
    /// Why the last reading gave nothing.
    why: RefCell<String>,
}

/// A reading disturbs the drive: there is one at most in so long a time.
const INTERVAL: Nanos = Nanos::from_secs(60);
const TOOL_LIMIT: Nanos = Nanos::from_secs(30);

impl Counters {
    /// Those of `/dev/NAME`. `None` stands for what has none: an export, a model.
    pub fn of(disk: Option<String>) -> Self {
        let is_readable = Cell::new(disk.is_some());
        let why = RefCell::new("no disk of this machine".to_owned());
        Self { disk, is_readable, read_at: Cell::new(None), why }
    }

    /// A reading, if it is time for one or `is_due` says so.
    pub async fn read(&self, steps: usize, is_due: bool) -> Option<Reading> {
        let disk = self.disk.as_ref().filter(|_| self.is_readable.get())?;
        let now = rt::now();
        if !is_due && self.read_at.get().is_some_and(|at| now.since(at) < INTERVAL) {
            return None;
        }
        self.read_at.set(Some(now));
        match drive_health(disk).await {
            Ok(health) => Some(Reading { at_s: rt::wall_clock(), steps, health }),
            Err(why) => {
                self.is_readable.set(false);
                self.why.replace(why);
                None
            }
        }
    }

    /// Why there is no reading.
    pub fn why(&self) -> String {
        self.why.borrow().clone()
    }
}

/// smartctl knows all drives. nvme-cli takes its place for NVMe, and alone knows the media's
/// writes.
pub async fn drive_health(disk: &str) -> Result<Health, String> {
    let is_nvme = disk.starts_with("/dev/nvme");
    let mut health = match tools::run("smartctl", &["-x", "--json=c", disk], TOOL_LIMIT).await {
        // Its exit code tells of the drive's past, too: the text says whether it could read.
        Ok(Printed { text, .. }) => Health::of_smartctl(&text),
        Err(e @ (ToolError::Missing | ToolError::Io(_) | ToolError::Late)) => {
            Err(format!("smartctl {e}"))
        }
    };
    if !is_nvme {
        return health;
    }
    if let Err(why) = &health {
        let words = ["smart-log", disk, "-o", "json"];
        health = match tools::run("nvme", &words, TOOL_LIMIT).await {
            Ok(printed) => Health::of_nvme(&printed.text),
            Err(e) => Err(format!("{why}, nvme {e}")),
        };
    }
    let words = ["ocp", "smart-add-log", disk, "-o", "json"];
    if let Ok(health) = &mut health {
        if let Ok(Printed { text, is_success: true, .. }) =
            tools::run("nvme", &words, TOOL_LIMIT).await
        {
            health.add_ocp(&text);
        }
    }
    health
}
