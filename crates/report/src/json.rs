//! Results to JSON and back. The bytes depend on the results alone.

use crate::{Results, SCHEMA};

/// Results that could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// Not JSON, or not the layout; the text says where.
    Malformed(String),
    /// Written by another version.
    Version {
        /// What the file says it is.
        found: String,
    },
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "these are not results: {why}"),
            Self::Version { found } => write!(
                f,
                "these results have layout '{found}', this program reads '{SCHEMA}'; \
                 make the report with the version that wrote them"
            ),
        }
    }
}

impl std::error::Error for ReadError {}

/// Digits kept in JSON. Mathematical libraries differ in the last bits between machines; seven
/// digits are more than any figure here deserves and make the bytes the same everywhere.
const DIGITS: usize = 7;

/// `value` with seven significant digits.
#[must_use]
pub fn round_significant(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    format!("{value:.*e}", DIGITS - 1).parse().unwrap_or(value)
}

/// Rounds every number in a JSON value that is not whole to seven significant digits.
pub fn round_all(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Number(n) if n.is_f64() => {
            let rounded = round_significant(n.as_f64().unwrap_or_default());
            if let Some(n) = serde_json::Number::from_f64(rounded) {
                *value = serde_json::Value::Number(n);
            }
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(round_all),
        serde_json::Value::Object(fields) => fields.values_mut().for_each(round_all),
        _ => {}
    }
}

/// The results as JSON: keys sorted, numbers rounded to seven digits, a newline at the end.
///
/// A number that is not finite becomes `null`; reading such a file back fails where a number must
/// stand, so a NaN cannot pass for a measurement.
#[must_use]
pub fn to_json(results: &Results) -> String {
    let mut value = serde_json::to_value(results).expect("results are plain data");
    round_all(&mut value);
    let mut text = serde_json::to_string_pretty(&value).expect("a JSON value prints");
    text.push('\n');
    text
}

/// Reads results back. Fails on another layout version, naming it, and on anything malformed.
pub fn from_json(text: &str) -> Result<Results, ReadError> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|e| ReadError::Malformed(e.to_string()))?;
    match value.get("schema").and_then(|s| s.as_str()) {
        Some(SCHEMA) => {}
        Some(other) => return Err(ReadError::Version { found: other.to_owned() }),
        None => return Err(ReadError::Malformed("no field 'schema'".into())),
    }
    serde_json::from_value(value).map_err(|e| ReadError::Malformed(e.to_string()))
}
