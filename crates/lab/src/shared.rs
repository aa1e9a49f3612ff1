//! Several equal devices behind one host bus adapter, each under its own closed loop.

use crate::bench::{Sample, stored_thousandths};
use crate::load::{Asks, Load};
use crate::{LabError, shrink};
use forebay_flash::{DeviceSpec, Hba, Request};
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

impl Shared {
    /// Runs it, after as many requests again that are not measured.
    pub fn run(&self) -> Result<SharedOutcome, LabError> {
        self.pattern.check()?;
        if self.devices == 0 || self.requests == 0 {
            return Err(LabError::usage("devices and requests must be at least 1"));
        }
        if !self.hba_iops.is_finite() || self.hba_iops < 0.0 {
            let text = format!("hba_iops is {}, not a number from 0 up", self.hba_iops);
            return Err(LabError::usage(text));
        }
        let (device, _) = shrink::shrink(&self.device, 0)?;
        let stored = stored_thousandths(&self.pattern, self.seed);
        let mut models = Vec::new();
        let mut asks = Vec::new();
        for i in 0..self.devices {
            let seed = crate::hash::mix(self.seed.wrapping_add(u64::from(i)));
            let model = forebay_flash::build(&device, seed)?;
            asks.push(Asks::new(&self.pattern, model.identity().capacity_bytes, seed)?);
            models.push(model);
        }
        let mut hba = Hba::new(self.hba_iops);
        // What waits to pass the adapter and what is in a device lie in one heap by time.
        let mut events: BinaryHeap<Reverse<(u64, u32, u64)>> = BinaryHeap::new();
        for _ in 0..self.pattern.outstanding {
            for i in 0..self.devices {
                events.push(Reverse((hba.pass(Nanos(0)).0, i, 0)));
            }
        }
        let mut passing: BinaryHeap<Reverse<(u64, u32, u64)>> = std::mem::take(&mut events);
        let (mut done, mut begin) = (0u64, 0u64);
        let (mut sum, mut longest, mut now) = (0u128, 0u64, 0u64);
        while done < 2 * self.requests {
            let next_pass = passing.peek().map(|Reverse(e)| e.0);
            let next_done = events.peek().map(|Reverse(e)| e.0);
            if next_pass.is_some_and(|p| next_done.is_none_or(|d| p <= d)) {
                let Reverse((at, i, asked)) = passing.pop().expect("peeked");
                let ask = asks[i as usize].next(0);
                let len = u64::from(ask.len_bytes);
                let request = if ask.read {
                    Request::read(ask.offset_bytes, len)
                } else {
                    let write = Request::write(ask.offset_bytes, len);
                    let write =
                        stored.map_or(write, |s| write.with(forebay_flash::Content::Stored(s)));
                    if self.pattern.fua { write.fua() } else { write }
                };
                let completion = models[i as usize]
                    .submit(Nanos(at), &request)
                    .map_err(|e| LabError::usage(e.to_string()))?;
                events.push(Reverse((completion.at.0, i, asked)));
                continue;
            }
            let Reverse((at, i, asked)) = events.pop().expect("every device has requests");
            now = at;
            done += 1;
            if done == self.requests {
                begin = at;
            } else if done > self.requests {
                sum += u128::from(at - asked);
                longest = longest.max(at - asked);
            }
            passing.push(Reverse((hba.pass(Nanos(at)).0, i, at)));
        }
        let seconds = (now - begin).max(1) as f64 / 1e9;
        let iops = self.requests as f64 / seconds;
        let whole = Sample {
            minute: 0.0,
            iops,
            mib_s: iops * f64::from(self.pattern.block_bytes) / f64::from(1 << 20),
            mean_ms: sum as f64 / self.requests as f64 / 1e6,
            max_ms: longest as f64 / 1e6,
            ..Sample::default()
        };
        let link_retries = models.iter().map(|m| m.stats(Nanos(now)).link_retries).sum();
        Ok(SharedOutcome { whole, link_retries })
    }
}

#[cfg(test)]
mod tests;
