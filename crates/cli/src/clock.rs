//! Times and spans for people.

/// Seconds since 1970, now.
#[must_use]
pub fn now_secs() -> u64 {
    // SAFETY: a null pointer asks for the result alone.
    let secs = unsafe { libc::time(std::ptr::null_mut()) };
    u64::try_from(secs).unwrap_or(0)
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

fn formatted(secs: u64, format: &std::ffi::CStr) -> String {
    let Ok(time) = libc::time_t::try_from(secs) else { return secs.to_string() };
    // SAFETY: all-zero bytes are a valid `tm`; its pointer may be null.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values of the right type.
    if unsafe { libc::localtime_r(&raw const time, &raw mut parts) }.is_null() {
        return secs.to_string();
    }
    let mut text = [0u8; 64];
    // SAFETY: the buffer has the length given, the format ends in a null byte, and `parts` is live.
    let len = unsafe {
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &raw const parts)
    };
    String::from_utf8_lossy(&text[..len]).into_owned()
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
