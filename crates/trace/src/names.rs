//! Names of the devices and threads of a trace.

use forebay_units::FixedMap;

use crate::event::DeviceIndex;

/// Devices and threads that keep their name. A source with more is damaged, or is no trace.
const MAX_NAMES: usize = 1 << 20;

/// Names that a trace gives to devices and threads, and the wall-clock time of its zero.
#[derive(Clone, Debug, Default)]
pub struct Names {
    devices: Vec<String>,
    index: FixedMap<Box<[u8]>, u32>,
    latest: (Vec<u8>, u32),
    processes: FixedMap<u32, String>,
    wall_zero_ns: Option<u64>,
}

impl Names {
    /// The device of this name; a new name gets the next index. Beyond a million names, all that
    /// are new share one index.
    pub(crate) fn device(&mut self, name: &[u8]) -> DeviceIndex {
        if !self.devices.is_empty() && self.latest.0 == name {
            return DeviceIndex(self.latest.1);
        }
        let at = match self.index.get(name) {
            Some(at) => *at,
            None => self.new_device(name),
        };
        self.latest.0.clear();
        self.latest.0.extend_from_slice(name);
        self.latest.1 = at;
        DeviceIndex(at)
    }

    fn new_device(&mut self, name: &[u8]) -> u32 {
        if self.devices.len() >= MAX_NAMES {
            return (MAX_NAMES - 1) as u32;
        }
        let at = self.devices.len() as u32;
        self.devices.push(String::from_utf8_lossy(name).into_owned());
        self.index.insert(name.into(), at);
        at
    }

    /// The device of this name; a new name gets the next index.
    pub fn add_device(&mut self, name: &str) -> DeviceIndex {
        self.device(name.as_bytes())
    }

    /// Notes where time 0 of the source lies, in nanoseconds after 1970, unless that is known.
    pub fn set_first_wall_zero(&mut self, unix_ns: Option<u64>) {
        self.wall_zero_ns = self.wall_zero_ns.or(unix_ns);
    }

    /// The device's name in the source: a path, a number, `major,minor`.
    #[must_use]
    pub fn device_name(&self, device: DeviceIndex) -> &str {
        self.devices.get(device.0 as usize).map_or("?", String::as_str)
    }

    /// All devices so far, in the order of appearance.
    #[must_use]
    pub fn devices(&self) -> &[String] {
        &self.devices
    }

    /// Notes what thread `pid` is called. Its latest name counts.
    pub(crate) fn set_process(&mut self, pid: u32, name: &[u8]) {
        let is_same = self.processes.get(&pid).is_some_and(|old| old.as_bytes() == name);
        if !is_same && (self.processes.len() < MAX_NAMES || self.processes.contains_key(&pid)) {
            self.processes.insert(pid, String::from_utf8_lossy(name).into_owned());
        }
    }

    /// What thread `pid` is called, where the source says so.
    #[must_use]
    pub fn process_name(&self, pid: u32) -> Option<&str> {
        self.processes.get(&pid).map(String::as_str)
    }

    /// Notes that time 0 of the source was this many nanoseconds after 1970.
    pub(crate) fn set_wall_zero(&mut self, unix_ns: u64) {
        self.wall_zero_ns = Some(unix_ns);
    }

    /// Nanoseconds from 1970 to time 0 of the source; `None` where the source does not say.
    #[must_use]
    pub fn wall_zero(&self) -> Option<u64> {
        self.wall_zero_ns
    }
}
