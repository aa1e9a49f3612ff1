//! Bytes, counts and shares for people and for programs.

/// Bytes, exact or as people read them.
#[must_use]
pub fn bytes(value: u64, exact: bool) -> String {
    if exact { value.to_string() } else { forebay_units::format_bytes(value) }
}

/// A count, exact or as people read it (`12.3K`, powers of 1024 as zpool has them).
#[must_use]
pub fn count(value: u64, exact: bool) -> String {
    if value < 1024 { value.to_string() } else { bytes(value, exact) }
}

/// How full, in percent; exact and scripted output leave the sign out.
#[must_use]
pub fn percent(part: u64, whole: u64, exact: bool) -> String {
    let share = if whole == 0 { 0 } else { (u128::from(part) * 100 / u128::from(whole)) as u64 };
    if exact { share.to_string() } else { format!("{share}%") }
}
