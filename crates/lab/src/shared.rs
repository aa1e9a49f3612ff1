//! Several equal devices behind one host bus adapter, each under its own closed loop.

use crate::bench::{Sample, request_of, stored_thousandths};
use crate::load::{Arrivals, AskKind, Asks, Load};
use crate::responses::BothTimes;
use crate::{LabError, shrink};
use forebay_flash::{DeviceSpec, Hba, Model};
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// `devices` of a kind behind an adapter that passes `hba_iops` commands a second in all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shared {
    /// The device at full size.
    pub device: DeviceSpec,
    /// How many.
    pub devices: u32,
    /// Commands a second the adapter passes; 0: no limit, or no adapter.
    pub hba_iops: f64,
    /// Seed of devices and loads.
    #[serde(default)]
    pub seed: u64,
    /// Requests measured, over all devices.
    pub requests: u64,
    /// What each device gets.
    pub pattern: Load,
}

/// All devices together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedOutcome {
    /// The whole measured stretch; `mean_ms` and `max_ms` from the host's side of the adapter.
    pub whole: Sample,
    /// Transfers repeated because of bit errors.
    pub link_retries: u64,
}

/// Devices that may share an adapter.
const MAX_DEVICES: u32 = 1024;

impl Shared {
    fn check(&self) -> Result<(), LabError> {
        self.pattern.check()?;
        if self.pattern.arrivals != Arrivals::Closed {
            let found = "open";
            return Err(LabError::field("shared", "pattern.arrivals", found, "closed"));
        }
        if !(1..=MAX_DEVICES).contains(&self.devices) {
            return Err(LabError::field("shared", "devices", self.devices, "from 1 to 1024"));
        }
        if self.requests == 0 {
            return Err(LabError::field("shared", "requests", self.requests, "at least 1"));
        }
        if !(0.0..=1e9).contains(&self.hba_iops) {
            return Err(LabError::field("shared", "hba_iops", self.hba_iops, "from 0 to 1e9"));
        }
        Ok(())
    }

    /// Runs all loads. As many requests as are measured run before, unmeasured.
    pub fn run(&self) -> Result<SharedOutcome, LabError> {
        self.check()?;
        let mut loops = SharedLoops::new(self)?;
        while loops.done < 2 * self.requests {
            loops.step()?;
        }
        Ok(loops.outcome())
    }
}

/// A request's instant, its device, when the host asked for it, and, in the device, whether it is a
/// read.
type Queued = Reverse<(u64, u32, u64, bool)>;

/// The closed loops of all devices, with the adapter in front of them.
struct SharedLoops<'a> {
    shared: &'a Shared,
    stored: Option<u16>,
    models: Vec<Box<dyn Model>>,
    asks: Vec<Asks>,
    hba: Hba,
    /// Requests that wait to pass the adapter, by the instant when they do.
    passing: BinaryHeap<Queued>,
    /// Requests in a device, by completion.
    in_device: BinaryHeap<Queued>,
    done: u64,
    begin_ns: u64,
    now_ns: u64,
    response_sum_ns: u128,
    response_max_ns: u64,
    times: BothTimes,
}

impl<'a> SharedLoops<'a> {
    fn new(shared: &'a Shared) -> Result<Self, LabError> {
        let (device, _) = shrink::shrink(&shared.device, 0)?;
        let (mut models, mut asks) = (Vec::new(), Vec::new());
        for i in 0..shared.devices {
            let seed = crate::hash::mix(shared.seed.wrapping_add(u64::from(i)));
            let model = forebay_flash::build(&device, seed)?;
            asks.push(Asks::new(&shared.pattern, model.identity().capacity_bytes, seed)?);
            models.push(model);
        }
        let mut hba = Hba::new(shared.hba_iops);
        let mut passing = BinaryHeap::new();
        for _ in 0..shared.pattern.outstanding {
            for i in 0..shared.devices {
                passing.push(Reverse((hba.pass(Nanos(0)).0, i, 0, false)));
            }
        }
        Ok(Self {
            shared,
            stored: stored_thousandths(&shared.pattern, shared.seed),
            models,
            asks,
            hba,
            passing,
            in_device: BinaryHeap::new(),
            done: 0,
            begin_ns: 0,
            now_ns: 0,
            response_sum_ns: 0,
            response_max_ns: 0,
            times: BothTimes::default(),
        })
    }

    /// The next event of all: a request passes the adapter, or one completes.
    fn step(&mut self) -> Result<(), LabError> {
        let next_pass = self.passing.peek().map(|Reverse(e)| e.0);
        let next_done = self.in_device.peek().map(|Reverse(e)| e.0);
        if next_pass.is_some_and(|p| next_done.is_none_or(|d| p <= d)) {
            return self.submit();
        }
        let Reverse((at, i, asked, read)) =
            self.in_device.pop().expect("every device has requests");
        self.now_ns = at;
        self.done += 1;
        if self.done == self.shared.requests {
            self.begin_ns = at;
        } else if self.done > self.shared.requests {
            self.response_sum_ns += u128::from(at - asked);
            self.response_max_ns = self.response_max_ns.max(at - asked);
            self.times.note(read, at - asked);
        }
        self.passing.push(Reverse((self.hba.pass(Nanos(at)).0, i, at, false)));
        Ok(())
    }

    fn submit(&mut self) -> Result<(), LabError> {
        let Reverse((at, i, asked, _)) = self.passing.pop().expect("a request waits to pass");
        let ask = self.asks[i as usize].next(0);
        let request = request_of(ask, &self.shared.pattern, self.stored);
        let completion = self.models[i as usize].submit(Nanos(at), &request)?;
        let read = ask.kind == AskKind::Read;
        self.in_device.push(Reverse((completion.at.0, i, asked, read)));
        Ok(())
    }

    fn outcome(&self) -> SharedOutcome {
        let requests = self.shared.requests as f64;
        let iops = requests / ((self.now_ns - self.begin_ns).max(1) as f64 / 1e9);
        let block_bytes = f64::from(self.shared.pattern.block_bytes);
        let whole = Sample {
            iops,
            mib_s: iops * block_bytes / f64::from(1 << 20),
            mean_ms: self.response_sum_ns as f64 / requests / 1e6,
            max_ms: self.response_max_ns as f64 / 1e6,
            responses: self.times.responses(),
            ..Sample::default()
        };
        let now = Nanos(self.now_ns);
        let link_retries = self.models.iter().map(|m| m.stats(now).link_retries).sum();
        SharedOutcome { whole, link_retries }
    }
}

#[cfg(test)]
mod tests;
