//! When a device has done too much wrong: the rule by which errors become a fault, and how an
//! operator takes it back.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_format::config::MemberUse;
use forebay_rt as rt;
use forebay_units::{DeviceId, Nanos};

use crate::{Pool, PoolError};

/// So many errors within [`WITHIN`] are too many.
const TOO_MANY: usize = 10;
const WITHIN: Nanos = Nanos::from_secs(600);

/// What went wrong lately, by device.
#[derive(Default)]
pub(crate) struct Diagnosis {
    reads: RefCell<BTreeMap<DeviceId, VecDeque<Nanos>>>,
    repairs: RefCell<BTreeMap<DeviceId, VecDeque<Nanos>>>,
    /// Devices with too many errors that are used all the same.
    suspects: RefCell<BTreeSet<DeviceId>>,
}

/// Notes one more; whether that makes too many.
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
    /// Whether a device is used although it has done too much wrong.
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
    /// A read failed on a data member. Too many of them, and it is taken out, unless the pool
    /// cannot do without it.
    pub(crate) fn diagnose_read(&self, device: DeviceId) {
        let diagnosis = &self.health.diagnosis;
        if !note(&diagnosis.reads, device) || diagnosis.suspects(device) {
            return;
        }
        let path = self.device_path(device);
        match self.array.fault(device) {
            Ok(()) => self.health.remark(format!(
                "{path} was taken out: {TOO_MANY} of its reads failed within {} minutes",
                WITHIN.0 / 60_000_000_000
            )),
            Err(why) => {
                diagnosis.suspects.borrow_mut().insert(device);
                self.health.remark(format!("{path} fails many reads and is still needed: {why}"));
            }
        }
    }

    /// A data member held something wrong, which was put right. Too many of these make it
    /// suspect: it goes on, for what it holds is checked, but somebody should look.
    pub(crate) fn diagnose_repair(&self, device: DeviceId) {
        let diagnosis = &self.health.diagnosis;
        if note(&diagnosis.repairs, device) && diagnosis.suspects.borrow_mut().insert(device) {
            let path = self.device_path(device);
            self.health.remark(format!("{path} was repaired in many places; see if it is well"));
        }
    }

    /// Forgets the errors of one device, or of all, and takes those back that were taken out for
    /// them. A device that is named and cannot be taken back is an error.
    pub async fn clear(&self, device: Option<&str>) -> Result<(), PoolError> {
        if self.is_stopped() {
            return Err(PoolError::new(format!(
                "pool '{0}' is suspended ({1}); 'forebay pool export {0}' lets it go, 'forebay serve {0}' \
                 opens it again",
                self.name(),
                self.stop_reason()
            )));
        }
        let members: Vec<(DeviceId, String, MemberUse)> = {
            let config = self.config.borrow();
            let logs = config.logs.iter().flat_map(|ring| &ring.sides);
            let all = config.data_members().chain(logs);
            all.map(|m| (DeviceId(m.device), m.path.clone(), m.state)).collect()
        };
        let named = device.map(|name| self.find_member(name)).transpose()?;
        let status = self.array.status();
        for (id, path, state) in members {
            if named.as_ref().is_some_and(|named| named.device != id.0) {
                continue;
            }
            self.health.diagnosis.forget(id);
            self.health.log_errors.borrow_mut().remove(&id);
            let now = status.iter().find(|member| member.id == id);
            if now.is_some() {
                self.array.clear_errors(id)?;
            }
            use forebay_array::MemberState as State;
            let out = match now.map(|member| member.state) {
                Some(State::Faulted | State::Degraded | State::Removed | State::Unavail) => true,
                Some(State::Online | State::Offline) => false,
                None => state == MemberUse::Faulted,
            };
            if out
                && let Err(error) = self.online(&path).await
                && named.is_some()
            {
                return Err(error);
            }
        }
        Ok(())
    }
}
