//! Times and spans for people.

/// Seconds since 1970, now.
#[must_use]
pub fn now_secs() -> u64 {
    forebay_rt::sys::unix_time_secs()
}

/// Seconds since 1970 as `Sun Nov 21 03:09:29 2026`, in local time.
#[must_use]
pub fn local_time(secs: u64) -> String {
    formatted(secs, c"%a %b %e %H:%M:%S %Y")
}

/// The same as `2026-11-21.03:09:29`, as `zpool history` prints it.
#[must_use]
pub fn history_time(secs: u64) -> String {
    formatted(secs, c"%Y-%m-%d.%H:%M:%S")
}

/// The same as `2026-11-21T03:09:29+0000`, for lines of a log.
#[must_use]
pub fn log_time(secs: u64) -> String {
    formatted(secs, c"%Y-%m-%dT%H:%M:%S%z")
}

/// The same as `2026 Nov 21 03:09:29`, as DTrace prints `%Y`.
#[must_use]
pub fn dtrace_time(secs: u64) -> String {
    formatted(secs, c"%Y %b %e %H:%M:%S")
}

/// The time of day as `03:09:29`, in local time.
#[must_use]
pub fn time_of_day(secs: u64) -> String {
    formatted(secs, c"%H:%M:%S")
}

fn formatted(secs: u64, format: &std::ffi::CStr) -> String {
    forebay_rt::sys::local_time(secs, format).unwrap_or_else(|| secs.to_string())
}

/// Seconds as `00:01:05`, or `2 days 00:01:05`.
#[must_use]
pub fn duration(secs: u64) -> String {
    let clock = format!("{:02}:{:02}:{:02}", secs / 3600 % 24, secs / 60 % 60, secs % 60);
    match secs / 86_400 {
        0 => clock,
        1 => format!("1 day {clock}"),
        days => format!("{days} days {clock}"),
    }
}
