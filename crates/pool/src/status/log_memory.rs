//! What a pool shows of a log device in memory.

use forebay_device::{DramState, DramStatus};
use serde::{Deserialize, Serialize};

/// What the content of a log device in memory outlives now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survives {
    /// A crash of the server, or `kill -9`.
    pub process_crash: bool,
    /// A crash of the kernel, or a reset.
    pub kernel_crash: bool,
    /// A loss of power.
    pub power_loss: bool,
    /// A loss of the host.
    pub host_loss: bool,
}

/// A log device in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogMemory {
    /// `ARMED`, `SAVED` and so on, as the documents say.
    pub state: String,
    /// Why it is not armed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Path of the memory.
    pub path: String,
    /// It has a backup device.
    pub has_backup: bool,
    /// The power supply that protects it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ups: Option<String>,
    /// What the power supply says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ups_status: Option<String>,
    /// For how many seconds the power supply says that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_secs: Option<u64>,
    /// Seconds that a save of the whole memory takes at most.
    pub save_secs: u64,
    /// Bytes that only the memory has.
    pub unsaved_bytes: u64,
    /// Another side of its mirror has all that it has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_mirrored: bool,
    /// What its content outlives now.
    pub survives: Survives,
}

impl LogMemory {
    /// What is known of one that is not used without a mirror. `mirror`: whether another side is in
    /// use, and whether one on another host is.
    #[must_use]
    pub fn in_mirror(mut self, (is_in_use, is_elsewhere): (bool, bool)) -> Self {
        self.is_mirrored = is_in_use;
        if is_in_use {
            let survives = &mut self.survives;
            (survives.kernel_crash, survives.power_loss) = (true, true);
            survives.host_loss = is_elsewhere;
        } else {
            self.state = DramState::Disarmed.as_str().to_owned();
            self.reason = Some("no other side of its mirror is in use".to_owned());
            self.survives.power_loss = false;
        }
        self
    }
}

impl From<DramStatus> for LogMemory {
    fn from(status: DramStatus) -> Self {
        let is_on_media =
            matches!(status.state, DramState::Saved | DramState::Restoring | DramState::Restored);
        let is_persistent = status.is_persistent || is_on_media;
        let survives = Survives {
            // What could not be saved is still in memory.
            process_crash: true,
            kernel_crash: is_persistent,
            power_loss: is_persistent || status.state == DramState::Armed,
            host_loss: false,
        };
        Self {
            state: status.state.as_str().to_owned(),
            reason: status.reason.map(|reason| reason.to_string()),
            path: status.memory,
            has_backup: status.has_backup,
            ups: status.ups,
            ups_status: status.ups_status,
            runtime_secs: status.runtime_secs,
            save_secs: status.save_secs,
            unsaved_bytes: status.unsaved_bytes,
            is_mirrored: false,
            survives,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(state: DramState, is_persistent: bool) -> LogMemory {
        LogMemory::from(DramStatus {
            state,
            reason: None,
            memory: "m".to_owned(),
            ups: None,
            is_persistent,
            needs_mirror: false,
            has_backup: true,
            unsaved_bytes: 1,
            save_secs: 2,
            ups_status: None,
            runtime_secs: Some(3),
        })
    }

    fn outlives(memory: &LogMemory) -> [bool; 4] {
        let Survives { process_crash, kernel_crash, power_loss, host_loss } = memory.survives;
        [process_crash, kernel_crash, power_loss, host_loss]
    }

    #[test]
    fn memory_outlives_what_its_state_says() {
        use DramState::{Armed, Disarmed, Restored, Restoring, SaveFailed, Saved, Unprotected};
        for (state, kernel_crash, power_loss) in [
            (Armed, false, true),
            (Saved, true, true),
            (Restoring, true, true),
            (Restored, true, true),
            (Disarmed, false, false),
            (SaveFailed, false, false),
            (Unprotected, false, false),
        ] {
            let shown = memory(state, false);
            assert_eq!(outlives(&shown), [true, kernel_crash, power_loss, false], "{state:?}");
            assert!(!shown.is_mirrored && shown.state == state.as_str(), "{state:?}");
            assert_eq!(outlives(&memory(state, true)), [true, true, true, false], "{state:?}");
        }
    }

    #[test]
    fn memory_that_a_mirror_protects_outlives_what_the_other_side_does() {
        let shown = |mirror| memory(DramState::Armed, false).in_mirror(mirror);
        for is_elsewhere in [false, true] {
            let mirrored = shown((true, is_elsewhere));
            assert_eq!(outlives(&mirrored), [true, true, true, is_elsewhere]);
            assert!(mirrored.is_mirrored && mirrored.reason.is_none());
            assert_eq!(mirrored.state, "ARMED");
            let alone = shown((false, is_elsewhere));
            assert_eq!(outlives(&alone), [true, false, false, false]);
            assert!(!alone.is_mirrored && alone.reason.is_some());
            assert_eq!(alone.state, "DISARMED");
        }
    }
}
