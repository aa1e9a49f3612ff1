//! Recordings of the devices of served pools.
//!
//! What enters: devices as they are opened, polls of `forebay trace pool`. What leaves: the devices
//! under a layer that records, and what it recorded. What always holds: a recording that is not
//! polled for ten seconds ends, and a full record drops what comes and counts it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use forebay_device::layers::{CommandRecord, Recorded};
use forebay_device::{Device, Operation};
use forebay_rt as rt;
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

/// Commands of a device that are kept between two polls.
const MAX_KEPT: usize = 100_000;
/// Commands in one reply.
const MAX_REPLY: usize = 100_000;
/// A recording ends when it is not polled for as long.
const POLL_TIMEOUT: Nanos = Nanos::from_secs(10);

/// Commands of the devices of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// The server's clock when it replied, in nanoseconds.
    pub now_ns: u64,
    /// Seconds since 1970 then.
    pub unix_s: u64,
    /// Commands that were dropped since the last reply.
    pub dropped: u64,
    /// Each device with what it completed since the last reply.
    pub devices: Vec<(String, Vec<Command>)>,
}

/// A command, as the control socket carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command(
    /// When it was issued, by the server's clock.
    pub u64,
    /// When it completed.
    pub u64,
    /// What it was.
    pub Kind,
    /// Where, in bytes.
    pub u64,
    /// How much.
    pub u64,
    /// Whether it asked for durability.
    pub bool,
);

/// What a command was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the operations of a device
pub enum Kind {
    #[serde(rename = "R")]
    Read,
    #[serde(rename = "W")]
    Write,
    #[serde(rename = "D")]
    Discard,
    #[serde(rename = "F")]
    Flush,
}

/// All devices that this process opened for pools.
#[derive(Default)]
pub struct Taps {
    devices: RefCell<BTreeMap<String, Weak<Recorded>>>,
    /// Pools that are recorded: their devices' paths, and when they were polled last.
    polled: RefCell<BTreeMap<String, (Vec<String>, Nanos)>>,
    is_watching: Cell<bool>,
}

impl Taps {
    /// Puts a layer over a device, which records nothing yet.
    pub fn tap(&self, path: &str, device: Device) -> Device {
        let recorded = Recorded::new(device, 0);
        self.devices.borrow_mut().insert(path.to_owned(), Rc::downgrade(&recorded));
        recorded
    }

    fn each(&self, paths: &[String]) -> Vec<(String, Rc<Recorded>)> {
        let devices = self.devices.borrow();
        let open = |path: &String| Some((path.clone(), devices.get(path)?.upgrade()?));
        paths.iter().filter_map(open).collect()
    }

    /// What the devices at `paths` of a pool have completed since the last poll; the first poll
    /// begins the recording.
    pub fn poll(self: &Rc<Self>, pool: &str, paths: Vec<String>) -> Recording {
        let mut recording =
            Recording { now_ns: rt::now().0, unix_s: rt::wall_clock(), ..Recording::default() };
        let mut room = MAX_REPLY;
        for (path, device) in self.each(&paths) {
            device.set_limit(MAX_KEPT);
            let commands: Vec<Command> =
                device.take_first(room).into_iter().filter_map(command).collect();
            room -= commands.len().min(room);
            recording.dropped += device.take_dropped();
            recording.devices.push((path, commands));
        }
        let first = (paths, rt::now());
        if self.polled.borrow_mut().insert(pool.to_owned(), first).is_none() {
            // What an earlier recording left says nothing of this one.
            recording.devices.iter_mut().for_each(|(_, commands)| commands.clear());
            recording.dropped = 0;
        }
        if !self.is_watching.replace(true) {
            rt::spawn_detached(Box::pin(self.clone().watch()));
        }
        recording
    }

    /// Ends the recording of a pool; what was not polled is gone.
    pub fn end(&self, pool: &str) -> Recording {
        let polled = self.polled.borrow_mut().remove(pool);
        for (_, device) in self.each(&polled.map(|(paths, _)| paths).unwrap_or_default()) {
            device.set_limit(0);
            drop((device.take(), device.take_dropped()));
        }
        Recording::default()
    }

    /// Ends recordings whose command is gone.
    async fn watch(self: Rc<Self>) {
        const INTERVAL: Nanos = Nanos::from_secs(2);
        while !self.polled.borrow().is_empty() {
            rt::sleep(INTERVAL).await;
            let now = rt::now();
            let is_late = |(_, at): &(Vec<String>, Nanos)| now.since(*at) > POLL_TIMEOUT;
            let polled = self.polled.borrow();
            let late: Vec<String> =
                polled.iter().filter(|(_, p)| is_late(p)).map(|(pool, _)| pool.clone()).collect();
            drop(polled);
            late.iter().for_each(|pool| drop(self.end(pool)));
        }
        self.is_watching.set(false);
    }
}

/// A record as the socket carries it; `None` for queries that move nothing.
fn command(record: CommandRecord) -> Option<Command> {
    let kind = match record.operation {
        Operation::Read => Kind::Read,
        // Zeros that a device writes by itself are writes to it.
        Operation::Write | Operation::WriteZeroes => Kind::Write,
        Operation::Discard => Kind::Discard,
        Operation::Flush => Kind::Flush,
        Operation::Open | Operation::Allocation | Operation::Check | Operation::Reservation => {
            return None;
        }
    };
    let CommandRecord { issued, completed, offset_bytes, len_bytes, fua, .. } = record;
    Some(Command(issued.0, completed.0, kind, offset_bytes, len_bytes, fua))
}

#[cfg(test)]
mod tests;
