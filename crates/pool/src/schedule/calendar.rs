//! The calendar of schedules, in UTC: periods, and times in names.

const MINUTE_SECS: u64 = 60;
const HOUR_SECS: u64 = 3600;
const DAY_SECS: u64 = 86_400;

/// How often a snapshot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Frequent,
    Hourly,
    Daily,
    Weekly,
    Monthly,
    Yearly,
}

const KINDS: [(Kind, &str); 6] = [
    (Kind::Frequent, "frequent"),
    (Kind::Hourly, "hourly"),
    (Kind::Daily, "daily"),
    (Kind::Weekly, "weekly"),
    (Kind::Monthly, "monthly"),
    (Kind::Yearly, "yearly"),
];

impl Kind {
    /// From its word.
    pub fn parse(word: &str) -> Option<Self> {
        KINDS.iter().find(|(_, known)| *known == word).map(|(kind, _)| *kind)
    }

    /// The word.
    pub fn as_str(self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, word)| word)
    }
}

/// Number of the period in which a time is: of the quarters of an hour, hours, days, weeks from
/// Monday on, months or years since 1970 or before.
pub(super) fn period_of(kind: Kind, secs: u64) -> u64 {
    /// 1970 began on a Thursday.
    const DAYS_SINCE_MONDAY: u64 = 3;
    let (year, month, _) = date_of(secs);
    match kind {
        Kind::Frequent => secs / (15 * MINUTE_SECS),
        Kind::Hourly => secs / HOUR_SECS,
        Kind::Daily => secs / DAY_SECS,
        Kind::Weekly => (secs / DAY_SECS + DAYS_SINCE_MONDAY) / 7,
        Kind::Monthly => year * 12 + month,
        Kind::Yearly => year,
    }
}

/// Year, month from 1 on and day from 1 on. Years begin in March here, so that a leap day is the
/// last of its year, and 400 years have always as many days.
fn date_of(secs: u64) -> (u64, u64, u64) {
    const DAYS_0000_TO_1970: u64 = 719_468;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let days = secs / DAY_SECS + DAYS_0000_TO_1970;
    let (era, day) = (days / DAYS_IN_400_YEARS, days % DAYS_IN_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// A time as `2026-11-21T03:09Z`.
pub(super) fn stamp_of(secs: u64) -> String {
    let (year, month, day) = date_of(secs);
    let (hour, minute) = (secs % DAY_SECS / HOUR_SECS, secs % HOUR_SECS / MINUTE_SECS);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}Z")
}

/// Whether a text looks like one of [`stamp_of`].
pub(super) fn is_stamp(text: &str) -> bool {
    const FORM: &[u8] = b"0000-00-00T00:00Z";
    let fits = |(byte, form): (u8, &u8)| match form {
        b'0' => byte.is_ascii_digit(),
        form => byte == *form,
    };
    text.len() == FORM.len() && text.bytes().zip(FORM).all(fits)
}
