//! Diagnosis: when errors of a device become a fault, and how an operator clears it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_format::config::MemberUse;
use forebay_rt as rt;
use forebay_units::{DeviceId, Nanos};

use crate::Pool;
use crate::admin::error::AdminError;
use crate::status::PoolEvent;

/// Errors within [`WITHIN`] that make a device faulted or suspect.
const TOO_MANY: usize = 10;
const WITHIN: Nanos = Nanos::from_secs(600);

/// Times of recent errors, by device.
#[derive(Default)]
pub(crate) struct Diagnosis {
    reads: RefCell<BTreeMap<DeviceId, VecDeque<Nanos>>>,
    repairs: RefCell<BTreeMap<DeviceId, VecDeque<Nanos>>>,
    /// Devices with too many errors that the pool still uses.
    suspects: RefCell<BTreeSet<DeviceId>>,
}

/// Notes one more error. Returns whether there are too many now.
fn note(of: &RefCell<BTreeMap<DeviceId, VecDeque<Nanos>>>, device: DeviceId) -> bool {
    let now = rt::now();
    let mut all = of.borrow_mut();
    let times = all.entry(device).or_default();
    times.push_back(now);
    while times.len() > TOO_MANY || times.front().is_some_and(|t| now.since(*t) > WITHIN) {
        times.pop_front();
    }
    times.len() == TOO_MANY
}

impl Diagnosis {
    /// Whether the pool uses a device in spite of too many errors.
    pub fn suspects(&self, device: DeviceId) -> bool {
        self.suspects.borrow().contains(&device)
    }

    fn forget(&self, device: DeviceId) {
        self.reads.borrow_mut().remove(&device);
        self.repairs.borrow_mut().remove(&device);
        self.suspects.borrow_mut().remove(&device);
    }
}

impl Pool {
    /// A read of a data member failed. Too many failures take the member out, unless the pool needs
    /// it.
    pub(crate) fn diagnose_read(&self, device: DeviceId) {
        let diagnosis = &self.health.diagnosis;
        if !note(&diagnosis.reads, device) || diagnosis.suspects(device) {
            return;
        }
        let path = self.device_path(device);
        match self.store.array.fault(device, None) {
            Ok(()) => self.health.events.push(PoolEvent::TakenOut { device: path }),
            Err(error) => {
                diagnosis.suspects.borrow_mut().insert(device);
                self.health.events.push(PoolEvent::StillNeeded { device: path, error });
            }
        }
    }

    /// Wrong data on a member was repaired. Too many repairs make it suspect: it stays in use,
    /// because its data is checked, but the operator should look at it.
    pub(crate) fn diagnose_repair(&self, device: DeviceId) {
        let diagnosis = &self.health.diagnosis;
        if note(&diagnosis.repairs, device) && diagnosis.suspects.borrow_mut().insert(device) {
            let device = self.device_path(device);
            self.health.events.push(PoolEvent::ManyRepairs { device });
        }
    }

    /// Clears the errors of one device or of all, and takes back devices that were taken out for
    /// them. It is an error if a device that was named cannot be taken back.
    pub async fn clear(&self, device: Option<&str>) -> Result<(), AdminError> {
        if let Some(reason) = self.lifecycle.stopped.borrow().clone() {
            return Err(AdminError::Suspended { pool: self.name(), reason });
        }
        let cache = device.map(|name| self.find_cache(name)).transpose()?.flatten();
        if device.is_none() || cache.is_some() {
            self.clear_caches(cache.as_ref());
        }
        if cache.is_some() {
            return Ok(());
        }
        let members: Vec<(DeviceId, String, MemberUse)> = {
            let config = self.config.borrow();
            let logs = config.logs.iter().flat_map(|ring| &ring.sides);
            let all = config.data_members().chain(logs);
            all.map(|m| (DeviceId(m.device), m.path.clone(), m.state)).collect()
        };
        let named = device.map(|name| self.find_member(name)).transpose()?;
        let status = self.store.array.status();
        for (id, path, state) in members {
            if named.as_ref().is_some_and(|named| named.device != id.0) {
                continue;
            }
            self.health.diagnosis.forget(id);
            self.health.log_errors.borrow_mut().remove(&id);
            let now = status.iter().find(|member| member.id == id);
            if now.is_some() {
                self.store.array.clear_errors(id).map_err(|error| self.of_member(error))?;
            }
            use forebay_array::MemberState as State;
            let out = match now.map(|member| member.state) {
                Some(State::Faulted | State::Degraded | State::Removed | State::Unavail) => true,
                Some(State::Online | State::Offline) => false,
                None => state == MemberUse::Faulted,
            };
            if out {
                if let Err(error) = self.online(&path).await {
                    if named.is_some() {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_rt::Runtime;
    use forebay_units::Layout;

    use super::*;
    use crate::status::Health;
    use crate::tests::rack::{Rack, memory};
    use crate::tests::spec;

    #[test]
    fn errors_from_before_a_clear_count_no_more() {
        Runtime::simulated(1).block_on(async {
            let shelf = memory(&["a", "b"], 64 << 20);
            let options = spec(Layout::Mirror, &["a", "b"], &[]);
            let pool = Pool::create(shelf, "tank", &options).await.unwrap();
            let device = DeviceId(0);
            let is_suspect = || pool.health.diagnosis.suspects(device);
            for _ in 0..2 {
                for _ in 1..TOO_MANY {
                    pool.diagnose_repair(device);
                }
                assert!(!is_suspect());
                pool.diagnose_repair(device);
                assert!(is_suspect());
                pool.clear(None).await.unwrap();
                assert!(!is_suspect());
            }
            for _ in 1..TOO_MANY {
                pool.diagnose_read(device);
            }
            pool.clear(Some("a")).await.unwrap();
            pool.diagnose_read(device);
            let is_out = |event: &PoolEvent| matches!(event, PoolEvent::TakenOut { .. });
            assert!(!pool.events().iter().any(is_out), "{:?}", pool.events());
            pool.export().await.unwrap();
        });
    }

    #[test]
    fn errors_count_together_within_ten_minutes() {
        Runtime::simulated(4054).block_on(async {
            let shelf = memory(&["a"], 64 << 20);
            let options = spec(Layout::Raid0, &["a"], &[]);
            let pool = Pool::create(shelf, "tank", &options).await.unwrap();
            let device = DeviceId(0);
            let kept = || {
                let is_kept = |event: &&PoolEvent| matches!(event, PoolEvent::StillNeeded { .. });
                pool.events().iter().filter(is_kept).count()
            };
            (1..TOO_MANY).for_each(|_| pool.diagnose_read(device));
            rt::sleep(WITHIN + Nanos::from_secs(1)).await;
            // Those before are forgotten.
            (1..TOO_MANY).for_each(|_| pool.diagnose_read(device));
            assert!(kept() == 0 && !pool.health.diagnosis.suspects(device));
            rt::sleep(Nanos::from_secs(500)).await;
            pool.diagnose_read(device);
            assert!(kept() == 1 && pool.health.diagnosis.suspects(device));
            // It is told once.
            (0..2 * TOO_MANY).for_each(|_| pool.diagnose_read(device));
            assert_eq!(kept(), 1);
            pool.export().await.unwrap();
        });
    }

    #[test]
    fn a_device_that_is_named_must_come_back_when_its_errors_are_cleared() {
        Runtime::simulated(4055).block_on(async {
            let rack = Rack::new(&["a", "b"], 64 << 20);
            let options = spec(Layout::Mirror, &["a", "b"], &[]);
            let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
            rack.pull(&["b"]);
            pool.log_history("a command");
            pool.sync().await.unwrap();
            assert_eq!(pool.summary().health, Health::Degraded);
            pool.clear(Some("b")).await.unwrap_err();
            pool.clear(None).await.unwrap();
            rack.put_back(&["b"]);
            // The others are not meant.
            pool.clear(Some("a")).await.unwrap();
            assert_eq!(pool.summary().health, Health::Degraded);
            pool.clear(Some("b")).await.unwrap();
            let child = pool.status().groups[0].children[1].clone();
            assert_eq!((child.state, child.write_errors), (Health::Online, 0));
            rack.pull(&["a", "b"]);
            pool.log_history("another");
            pool.sync().await.unwrap_err();
            let refused = pool.clear(None).await.unwrap_err();
            assert!(matches!(refused, AdminError::Suspended { .. }), "{refused}");
        });
    }
}
