//! Several submission queues before one device, which takes their commands by NVMe's arbitration.

use crate::LabError;
use crate::load::{Load, Streams};
use crate::responses::Responses;
use serde::{Deserialize, Serialize};

/// How the device chooses the queue of its next command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arbitration {
    /// Each queue in its turn.
    #[default]
    RoundRobin,
    /// Urgent queues first, by turns. Then so many commands of each class in a round, and within a
    /// class each queue in its turn.
    Weighted {
        /// Commands of the class `high` in a round.
        high: u32,
        /// Of the class `medium`.
        medium: u32,
        /// Of the class `low`.
        low: u32,
    },
}

/// The priority class of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Before all others.
    Urgent,
    /// By the first weight.
    High,
    /// By the second weight.
    #[default]
    Medium,
    /// By the third weight.
    Low,
}

/// One submission queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// What is put into it.
    pub pattern: Load,
    /// Its class, where arbitration is weighted.
    #[serde(default)]
    pub class: Class,
}

fn one() -> u32 {
    1
}

/// Queues that share a device for some time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queues {
    /// How long, in minutes of the full-size device.
    pub minutes: f64,
    /// How the device chooses.
    #[serde(default)]
    pub arbitration: Arbitration,
    /// Commands that it takes from a queue in one turn.
    #[serde(default = "one")]
    pub burst: u32,
    /// Commands in the device at once; 0: as many as its link takes.
    #[serde(default)]
    pub device_slots: u32,
    /// Commands of one queue in the device at once; 0: no limit of its own.
    #[serde(default)]
    pub queue_slots: u32,
    /// The queues.
    pub queues: Vec<Queue>,
}

/// One queue's results. Responses begin when a request is put into its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueOutcome {
    /// Requests completed a second.
    pub iops: f64,
    /// 2^20 bytes a second.
    pub mib_s: f64,
    /// Mean response in milliseconds.
    pub mean_ms: f64,
    /// How long requests took.
    pub responses: Responses,
}

/// NVMe numbers 65,535 queues for input and output; so many are never used.
const MAX_QUEUES: usize = 1024;
/// Weights and bursts that NVMe's registers hold.
const MAX_WEIGHT: u32 = 256;

impl Queues {
    /// Checks that a device can be asked for this.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), LabError> {
        let of = |field, found: u32, allowed| Err(LabError::field("queues", field, found, allowed));
        if !(1..=MAX_QUEUES).contains(&self.queues.len()) {
            return of("queues", self.queues.len() as u32, "from 1 to 1024 queues");
        }
        let is_weight = |value: &u32| (1..=MAX_WEIGHT).contains(value);
        if !is_weight(&self.burst) {
            return of("burst", self.burst, "from 1 to 256");
        }
        let weights = match self.arbitration {
            Arbitration::RoundRobin => [1; 3],
            Arbitration::Weighted { high, medium, low } => [high, medium, low],
        };
        if let Some(weight) = weights.into_iter().find(|weight| !is_weight(weight)) {
            return of("arbitration.weighted", weight, "weights from 1 to 256");
        }
        for queue in &self.queues {
            queue.pattern.check()?;
            if queue.pattern.workers != 1 {
                let workers = queue.pattern.workers;
                return of("queues.pattern.workers", workers, "1: a queue is one worker's");
            }
            if queue.pattern.streams == Streams::Workers {
                let allowed = "one or split: a queue is one worker's";
                return Err(LabError::field("queues", "pattern.streams", "workers", allowed));
            }
            if self.arbitration == Arbitration::RoundRobin && queue.class != Class::Medium {
                let allowed = "left out where arbitration is round-robin";
                return Err(LabError::field("queues", "class", "given", allowed));
            }
        }
        Ok(())
    }
}

/// Queues of a class, each in its turn.
#[derive(Clone, Debug)]
struct Ring {
    members: Vec<usize>,
    at: usize,
    /// Commands that the present member may still have in this turn.
    left: u32,
}

impl Ring {
    /// The next member that is ready.
    fn next(&mut self, burst: u32, is_ready: impl Fn(usize) -> bool) -> Option<usize> {
        // The present member may have had its turn: it is asked again at the end.
        for _ in 0..=self.members.len() {
            let member = *self.members.get(self.at)?;
            if self.left > 0 && is_ready(member) {
                self.left -= 1;
                return Some(member);
            }
            self.at = (self.at + 1) % self.members.len();
            self.left = burst;
        }
        None
    }
}

/// The choice among queues, with its memory.
#[derive(Clone, Debug)]
pub(crate) struct Arbiter {
    burst: u32,
    urgent: Ring,
    /// High, medium, low: the queues, the weight, and what is left of it in this round.
    classes: [(Ring, u32, u32); 3],
}

impl Arbiter {
    pub(crate) fn new(of: &Queues) -> Self {
        let ring = |class: Class| {
            let all = of.queues.iter().enumerate();
            let members = all.filter(|(_, queue)| queue.class == class).map(|(i, _)| i).collect();
            Ring { members, at: 0, left: of.burst }
        };
        let weights = match of.arbitration {
            // All queues are of one class then.
            Arbitration::RoundRobin => [MAX_WEIGHT; 3],
            Arbitration::Weighted { high, medium, low } => [high, medium, low],
        };
        let class = |class, weight| (ring(class), weight, weight);
        Self {
            burst: of.burst,
            urgent: ring(Class::Urgent),
            classes: [
                class(Class::High, weights[0]),
                class(Class::Medium, weights[1]),
                class(Class::Low, weights[2]),
            ],
        }
    }

    /// The queue that the next command is taken from, of those that are ready.
    pub(crate) fn next(&mut self, is_ready: impl Fn(usize) -> bool) -> Option<usize> {
        if let Some(queue) = self.urgent.next(self.burst, &is_ready) {
            return Some(queue);
        }
        // What is left of this round, else a new one.
        for _ in 0..2 {
            for (ring, _, left) in self.classes.iter_mut().filter(|class| class.2 > 0) {
                if let Some(queue) = ring.next(self.burst, &is_ready) {
                    *left -= 1;
                    return Some(queue);
                }
            }
            self.classes.iter_mut().for_each(|(_, weight, left)| *left = *weight);
        }
        None
    }
}

#[cfg(test)]
mod tests;
