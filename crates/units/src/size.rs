//! Sizes as people write them: `8G` in, `7.50G` out, as zpool prints them.

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSizeError {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub flaw: SizeFlaw,
}

/// What is wrong with the text of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeFlaw {
    /// It is not a number, or its suffix is unknown.
    NotASize,
    /// It is 2^64 bytes or more.
    TooLarge,
}

impl std::fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = &self.text;
        match self.flaw {
            SizeFlaw::NotASize => {
                write!(f, "'{text}' is not a size; write for example 512M, 8G or 1.5T")
            }
            SizeFlaw::TooLarge => write!(f, "'{text}' is larger than 2^64 bytes"),
        }
    }
}

impl std::error::Error for ParseSizeError {}

/// Reads a size: digits, an optional fraction, an optional suffix K M G T P E (powers of 1024,
/// `B` and `iB` after it allowed). Fails on anything else, on a negative and on overflow.
pub fn parse_bytes(text: &str) -> Result<u64, ParseSizeError> {
    bytes_of(text).map_err(|flaw| ParseSizeError { text: text.to_owned(), flaw })
}

fn bytes_of(text: &str) -> Result<u64, SizeFlaw> {
    let body = text.trim();
    let digits = body.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(body.len());
    let (number, suffix) = body.split_at(digits);
    let lower = suffix.to_ascii_lowercase();
    let unit = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        "e" => 60,
        _ => return Err(SizeFlaw::NotASize),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1u64 << shift).ok_or(SizeFlaw::TooLarge);
    }
    let fraction: f64 = number.parse().map_err(|_| SizeFlaw::NotASize)?;
    let bytes = fraction * (1u64 << shift) as f64;
    if bytes >= u64::MAX as f64 {
        return Err(SizeFlaw::TooLarge);
    }
    Ok(bytes as u64)
}

/// Three significant digits and a suffix, as `zpool list` prints: `512B`, `7.50G`, `75.0M`, `750K`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    const SUFFIX: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];
    let mut value = bytes as f64;
    let mut step = 0;
    while value >= 1024.0 && step < SUFFIX.len() - 1 {
        value /= 1024.0;
        step += 1;
    }
    let exact = step > 0 && bytes % (1u64 << (10 * step)) == 0;
    if step == 0 || exact {
        format!("{value:.0}{}", SUFFIX[step])
    } else if value < 10.0 {
        format!("{value:.2}{}", SUFFIX[step])
    } else if value < 100.0 {
        format!("{value:.1}{}", SUFFIX[step])
    } else {
        format!("{value:.0}{}", SUFFIX[step])
    }
}
