//! Tasks: single runs, the unit of caching, of threads and of sweeps.

use crate::LabError;
use crate::cut::{Cut, CutOutcome};
use crate::hybrid::{Hybrid, HybridOutcome};
use crate::logs::{Logs, LogsOutcome};
use crate::mirror::{Mirror, MirrorOutcome};
use crate::outages::{Outages, OutagesOutcome};
use crate::shared::{Shared, SharedOutcome};
use crate::timeline::{Timeline, TimelineOutcome};
use crate::wear::{Wear, WearOutcome};
use crate::zil::{Zil, ZilOutcome};
use serde::{Deserialize, Serialize};

/// One run, complete in itself: equal tasks have equal outcomes on any machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// A device through phases of load and rest.
    Timeline(Timeline),
    /// Devices that share an adapter.
    Shared(Shared),
    /// Synchronous clients on a log device.
    Zil(Zil),
    /// A mirror worn to its end.
    Mirror(Box<Mirror>),
    /// Power cuts.
    Cut(Cut),
    /// A pool over simulated drives.
    Wear(Box<Wear>),
    /// A pool of slow devices with a log and a cache device.
    Hybrid(Box<Hybrid>),
    /// Several logs on one device.
    Logs(Box<Logs>),
    /// Parts that fail.
    Outages(Box<Outages>),
}

/// What came out of a [`Task`] of the same name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Of a timeline.
    Timeline(TimelineOutcome),
    /// Of devices that share an adapter.
    Shared(SharedOutcome),
    /// Of synchronous clients.
    Zil(ZilOutcome),
    /// Of a mirror.
    Mirror(MirrorOutcome),
    /// Of power cuts.
    Cut(CutOutcome),
    /// Of a pool over simulated drives.
    Wear(WearOutcome),
    /// Of a pool of slow devices.
    Hybrid(Box<HybridOutcome>),
    /// Of several logs.
    Logs(LogsOutcome),
    /// Of parts that fail.
    Outages(OutagesOutcome),
}

impl Task {
    /// Runs it on this thread.
    pub fn run(&self) -> Result<Outcome, LabError> {
        match self {
            Self::Timeline(task) => task.run().map(Outcome::Timeline),
            Self::Shared(task) => task.run().map(Outcome::Shared),
            Self::Zil(task) => task.run().map(Outcome::Zil),
            Self::Mirror(task) => task.run().map(Outcome::Mirror),
            Self::Cut(task) => task.run().map(Outcome::Cut),
            Self::Wear(task) => task.run().map(Outcome::Wear),
            Self::Hybrid(task) => task.run().map(|outcome| Outcome::Hybrid(Box::new(outcome))),
            Self::Logs(task) => task.run().map(Outcome::Logs),
            Self::Outages(task) => task.run().map(Outcome::Outages),
        }
    }
}

macro_rules! outcome_of {
    ($name:ident, $variant:ident, $inner:ty) => {
        impl Outcome {
            /// The outcome of a task of this kind. Panics on another: tasks and outcomes were mixed
            /// up by the program, not by a request.
            #[must_use]
            pub fn $name(&self) -> &$inner {
                match self {
                    Self::$variant(outcome) => outcome,
                    other => panic!("not an outcome of this kind: {other:?}"),
                }
            }
        }
    };
}
outcome_of!(timeline, Timeline, TimelineOutcome);
outcome_of!(shared, Shared, SharedOutcome);
outcome_of!(zil, Zil, ZilOutcome);
outcome_of!(mirror, Mirror, MirrorOutcome);
outcome_of!(cut, Cut, CutOutcome);
outcome_of!(wear, Wear, WearOutcome);
outcome_of!(hybrid, Hybrid, HybridOutcome);
outcome_of!(logs, Logs, LogsOutcome);
outcome_of!(outages, Outages, OutagesOutcome);
