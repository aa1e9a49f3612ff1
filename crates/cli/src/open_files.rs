//! The limit on open files of this process, and what it leaves to clients.
//!
//! What enters: the limits of the service. What leaves: limits that the process can keep. What
//! always holds: clients cannot take the last descriptors from devices and the state folder. Who
//! calls: servers, once.

use forebay_nbd::Limits;

use crate::doctor::ProcessLimits;
use crate::log;

/// Descriptors that clients leave to devices, the state folder, pages and commands.
const RESERVED: u64 = 128;

/// Lets this process open as many files as it may, and lowers `limits` to what that allows, with a
/// warning. Changes nothing if the kernel refuses.
#[must_use]
pub fn within(limits: Limits) -> Limits {
    let files = ProcessLimits::own().files;
    let raised = libc::rlimit { rlim_cur: files, rlim_max: files };
    // SAFETY: `raised` is one structure and outlives the call.
    if files == 0 || unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } != 0 {
        return limits;
    }
    let connections_max = connections_within(limits.connections_max, files);
    if connections_max < limits.connections_max {
        log::warning(&format!(
            "this process may open {files} files: it takes {connections_max} connections, not {}; \
             'ulimit -n 65536', or LimitNOFILE=65536 in the unit, allows more",
            limits.connections_max
        ));
    }
    Limits { connections_max, ..limits }
}

/// How many of `wanted` connections a process takes that may open so many files. Of few, half.
fn connections_within(wanted: usize, files: u64) -> usize {
    let spare = files.saturating_sub(RESERVED).max(files / 2);
    wanted.min(usize::try_from(spare).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_descriptors_to_the_rest() {
        for (files, left) in [(0, 0), (100, 50), (256, 128), (300, 172), (384, 256), (1024, 256)] {
            assert_eq!(connections_within(256, files), left, "{files}");
        }
        assert_eq!(connections_within(65_536, libc::RLIM_INFINITY), 65_536);
    }

    #[test]
    fn a_server_may_open_as_many_files_as_the_hard_limit_says() {
        let limits = within(Limits::default());
        let told = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = told.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let [soft, hard] = [0, 1].map(|at| line.split_whitespace().nth(at).unwrap());
        assert_eq!(soft, hard);
        assert!(hard.parse().is_ok_and(|hard: usize| limits.connections_max <= hard));
    }
}
