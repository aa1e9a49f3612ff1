//! Log devices that come back by themselves: those of other hosts, when host and network are back.
//!
//! What always holds: such a device is brought online as an operator does it, so its label decides;
//! one that was taken offline stays so; no command waits for a host that does not answer.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_format::config::MemberUse;
use forebay_rt as rt;
use forebay_units::{DeviceId, Nanos};

use crate::Pool;
use crate::admin::error::AdminError;
use crate::status::PoolEvent;

/// Between the first attempts to reach a host.
const RETRY_INTERVAL: Nanos = Nanos::from_secs(2);
/// Between later ones: each failed attempt doubles the time. Until the host is reached the log has
/// one side less, and an attempt is one connection.
const RETRY_INTERVAL_MAX: Nanos = Nanos::from_secs(10);

/// A device that is away.
struct Away {
    next_at: Nanos,
    interval: Nanos,
    /// The last refusal, which is not reported again.
    refusal: Option<AdminError>,
}

impl Pool {
    /// Runs until the pool is closed or stopped.
    pub(crate) async fn remote_log_loop(self: Rc<Self>) {
        let is_over = || self.lifecycle.closing.get() || self.is_stopped();
        let opener = self.opener.source();
        let mut away: BTreeMap<String, Away> = BTreeMap::new();
        loop {
            let pause = Box::pin(rt::sleep(RETRY_INTERVAL));
            let ended = Box::pin(self.sync.done.until(is_over));
            if let rt::Either::Right(_) = rt::select(pause, ended).await {
                return;
            }
            let lost = self.lost_sides();
            away.retain(|device, _| lost.contains(device));
            for device in lost {
                let first = Away { next_at: rt::now(), interval: RETRY_INTERVAL, refusal: None };
                let state = away.entry(device.clone()).or_insert(first);
                if rt::now() < state.next_at {
                    continue;
                }
                let Some(answers) = opener.answers(&device) else { continue };
                let ended = Box::pin(self.sync.done.until(is_over));
                match rt::select(answers, ended).await {
                    rt::Either::Left((true, _)) => self.take_back(&device, state).await,
                    rt::Either::Left((false, _)) => {}
                    rt::Either::Right(_) => return,
                }
                state.next_at = rt::now() + state.interval;
                state.interval = Nanos(state.interval.0 * 2).min(RETRY_INTERVAL_MAX);
            }
        }
    }

    /// Log devices that have failed, or were away when the pool was imported.
    pub(crate) fn lost_sides(&self) -> Vec<String> {
        let (config, devices) = (self.config.borrow(), self.devices.borrow());
        let sides = config.logs.iter().flat_map(|ring| &ring.sides);
        let is_open = |device: u32| devices.contains_key(&DeviceId(device));
        let lost = sides.filter(|side| match side.state {
            MemberUse::Faulted => true,
            MemberUse::Online => !is_open(side.device),
            MemberUse::Offline => false,
        });
        lost.map(|side| side.path.clone()).collect()
    }

    async fn take_back(&self, device: &str, state: &mut Away) {
        let event = match self.online(device).await {
            Ok(()) => PoolEvent::LogDeviceReturned { device: device.to_owned() },
            Err(error) if state.refusal.as_ref() == Some(&error) => return,
            Err(error) => {
                state.refusal = Some(error.clone());
                PoolEvent::LogDeviceRefused { device: device.to_owned(), error: Box::new(error) }
            }
        };
        self.health.events.push(event);
    }
}
