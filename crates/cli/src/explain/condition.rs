//! What is wrong with a pool, and what helps: a code for programs and two sentences.

use forebay_pool::SuspendReason;
use forebay_pool::status::{OutageReserve, PoolCondition, PoolEvent, ReserveLimit};
use serde::{Deserialize, Serialize};

use crate::clock::duration;

/// What is wrong with a pool, for programs. `docs/control.md` lists the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConditionCode {
    /// Nothing.
    Ok,
    /// It takes no more writes.
    Suspended,
    /// Some data cannot be read.
    DataLost,
    /// All devices are there, and some are being rebuilt.
    Rebuilding,
    /// The operator took devices offline.
    DevicesOffline,
    /// Devices are missing or have failed.
    DevicesFailed,
    /// The object store answers no request.
    StoreSilent,
    /// A request to the object store fails again and again while others are answered.
    StoreRequestFails,
    /// Operations on a device failed or gave wrong data, and the others made it good.
    DeviceErrors,
}

/// What `pool status` says of a pool's condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// For programs.
    pub condition: ConditionCode,
    /// What is wrong, in a sentence; empty when nothing is.
    pub status: String,
    /// What to do about it.
    pub action: String,
}

/// What to say of the condition of the pool `name`.
#[must_use]
pub fn advice(name: &str, condition: &PoolCondition) -> Advice {
    let (condition, status, action) = match condition {
        PoolCondition::Well => (ConditionCode::Ok, String::new(), String::new()),
        PoolCondition::Suspended(reason) => suspended(name, reason),
        PoolCondition::DataLost => (
            ConditionCode::DataLost,
            "Some data cannot be read: no copy or parity could repair it.".to_owned(),
            format!(
                "Restore the blocks listed below from a backup by writing them again, then run \
                 'forebay pool scrub {name}'."
            ),
        ),
        PoolCondition::Rebuilding => (
            ConditionCode::Rebuilding,
            "One or more devices are being rebuilt. Until that is done, fewer devices may fail \
             than the pool was made for."
                .to_owned(),
            format!(
                "Wait until the resilver is done, while the pool is served or with 'forebay pool \
                 resilver -w {name}'."
            ),
        ),
        PoolCondition::DevicesOffline => (
            ConditionCode::DevicesOffline,
            "One or more devices were taken offline by the operator. Fewer devices may fail than \
             the pool was made for."
                .to_owned(),
            bring_back(name),
        ),
        PoolCondition::DevicesFailed { last } => failed(name, last.as_ref()),
        PoolCondition::StoreSilent { device, secs, error, reserve } => {
            silent(name, device, (*secs, error.as_deref()), reserve.as_ref())
        }
        PoolCondition::StoreRequestFails { device, failing } => (
            ConditionCode::StoreRequestFails,
            format!("A request to the object store fails again and again. {device}: {failing}."),
            request_fails(name, device),
        ),
        PoolCondition::DeviceErrors => (
            ConditionCode::DeviceErrors,
            "Some operations on a device failed or gave wrong data. They were made good from the \
             others; no data is lost."
                .to_owned(),
            format!(
                "See whether the device should be replaced; 'forebay pool clear {name}' starts the \
                 counters again."
            ),
        ),
    };
    Advice { condition, status, action }
}

/// The folder of a store on a file system of this machine.
fn folder_of(device: &str) -> Option<&str> {
    let folder = device.strip_prefix("file://")?;
    Some(folder.split('?').next().unwrap_or(folder))
}

fn request_fails(name: &str, device: &str) -> String {
    let (remedy, copy) = match folder_of(device) {
        Some(folder) => {
            (format!("make room on the file system of {folder} if that is full"), "the folder")
        }
        None => {
            let look = "find out from the store's own log why it refuses this object";
            (look.to_owned(), "the bucket")
        }
    };
    format!(
        "Nothing that was answered is lost. It is made again until it succeeds; {remedy}. If the \
         object cannot be read there, restore it from a copy of {copy}; 'forebay pool scrub \
         {name}' then says what else is missing."
    )
}

fn silent(
    name: &str,
    device: &str,
    (secs, error): (u64, Option<&str>),
    reserve: Option<&OutageReserve>,
) -> (ConditionCode, String, String) {
    let why = error.map_or_else(String::new, |error| format!(": {error}"));
    let mut status = format!("The object store of {device} has not answered for {secs} s{why}.");
    if let Some(lasts) = reserve.and_then(reserve_line) {
        status.push_str(&format!(" Durable writes go on {lasts}."));
    }
    let remedy = match folder_of(device) {
        Some(folder) => {
            format!("Make room on the file system of {folder} if that is full, or mount it again.")
        }
        None => "Bring the store or the way to it back.".to_owned(),
    };
    let action = format!(
        "{remedy} Nothing that was answered is lost meanwhile. After \
         device_timeout the pool goes on without it if a mirror or parity has its data, and is \
         suspended otherwise. 'forebay pool set device_timeout=off {name}' waits for ever; with 5 \
         instead of off it is given up within seconds."
    );
    (ConditionCode::StoreSilent, status, action)
}

/// For how long durable writes go on without the store, and what ends that.
pub fn reserve_line(reserve: &OutageReserve) -> Option<String> {
    let end = match reserve.limit? {
        ReserveLimit::Log => "until the log is full",
        ReserveLimit::Memory => "until memory (dirty_limit) is full",
        ReserveLimit::DeviceTimeout => "until device_timeout",
    };
    Some(format!("for {} at the present rate, {end}", duration(reserve.secs?)))
}

fn suspended(name: &str, reason: &SuspendReason) -> (ConditionCode, String, String) {
    if *reason == SuspendReason::TakenOver {
        return (
            ConditionCode::Suspended,
            format!("The pool stopped taking writes: {reason}."),
            format!("Let go of what is left of it here with 'forebay pool export -f {name}'."),
        );
    }
    (
        ConditionCode::Suspended,
        format!("The pool stopped taking writes: {reason}."),
        format!(
            "Put that right (bring devices back; make room where device files lie), then 'forebay \
             pool clear {name}' goes on where it stopped. Nothing that was answered is lost \
             meanwhile, as long as this server runs."
        ),
    )
}

fn failed(name: &str, last: Option<&PoolEvent>) -> (ConditionCode, String, String) {
    let mut status = "One or more devices are missing, failed, or being rebuilt.".to_owned();
    if let Some(last) = last {
        status.push_str(&format!(" Last: {last}."));
    }
    let action = format!(
        "{} One that failed and is well again is taken back with 'forebay pool clear {name}'.",
        bring_back(name)
    );
    (ConditionCode::DevicesFailed, status, action)
}

fn bring_back(name: &str) -> String {
    format!(
        "Bring the device back with 'forebay pool online {name} DEV', or put another in its place \
         with 'forebay pool replace {name} DEV NEW'."
    )
}

#[cfg(test)]
mod tests {
    use forebay_pool::status::FailingRequestStatus;

    use super::*;

    #[test]
    fn each_condition_but_the_good_one_has_a_command_that_helps() {
        let bad = [
            PoolCondition::Suspended(SuspendReason::TakenOver),
            PoolCondition::DataLost,
            PoolCondition::Rebuilding,
            PoolCondition::DevicesOffline,
            PoolCondition::DevicesFailed { last: None },
            PoolCondition::StoreSilent {
                device: "s3://b/t".into(),
                secs: 9,
                error: None,
                reserve: None,
            },
            PoolCondition::StoreRequestFails {
                device: "s3://b/t".into(),
                failing: FailingRequestStatus {
                    request: "put".into(),
                    object: "data/1".into(),
                    failing_secs: 20,
                    attempts: 9,
                    error: "500".into(),
                },
            },
            PoolCondition::DeviceErrors,
        ];
        for condition in bad {
            let advice = advice("tank", &condition);
            assert!(advice.action.contains("'forebay "), "{advice:?}");
            assert!(advice.action.contains("tank") && advice.status.ends_with('.'), "{advice:?}");
        }
        let good = advice("tank", &PoolCondition::Well);
        assert_eq!((good.status.as_str(), good.action.as_str()), ("", ""));
    }

    #[test]
    fn a_store_in_a_folder_is_helped_by_room_on_its_file_system() {
        let failing = FailingRequestStatus {
            request: "put".into(),
            object: "data/1".into(),
            failing_secs: 20,
            attempts: 9,
            error: "no space left".into(),
        };
        let device = || "file:///srv/t?size=1T".to_owned();
        let (secs, error, reserve) = (9, None, None);
        for condition in [
            PoolCondition::StoreRequestFails { device: device(), failing },
            PoolCondition::StoreSilent { device: device(), secs, error, reserve },
        ] {
            let action = advice("tank", &condition).action;
            assert!(action.contains("ake room on the file system of /srv/t if"), "{action}");
            assert!(!action.contains("own log"), "{action}");
        }
    }

    #[test]
    fn failed_devices_are_explained_by_the_last_event() {
        let last = Some(PoolEvent::TakenOut { device: "/dev/b".into() });
        let advice = advice("tank", &PoolCondition::DevicesFailed { last });
        assert!(
            advice
                .status
                .ends_with("Last: /dev/b was taken out, because many of its reads failed.")
        );
    }
}
