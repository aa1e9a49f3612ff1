//! Results as JSON, written and read. The bytes depend on the results alone.

use crate::{Results, SCHEMA};

/// Results that could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The text is not JSON, or not the layout of results.
    Malformed(serde_json::Error),
    /// The field `schema` is absent or not text.
    NoSchema,
    /// Another version wrote the results.
    Version {
        /// The value of `schema`.
        found: String,
    },
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(cause) => write!(f, "these are not results: {cause}"),
            Self::NoSchema => f.write_str("these are not results: there is no field 'schema'"),
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

/// Reads results back.
///
/// # Errors
/// [`ReadError`] when the text is malformed or has another layout version.
pub fn from_json(text: &str) -> Result<Results, ReadError> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(ReadError::Malformed)?;
    match value.get("schema").and_then(|s| s.as_str()) {
        Some(SCHEMA) => {}
        Some(other) => return Err(ReadError::Version { found: other.to_owned() }),
        None => return Err(ReadError::NoSchema),
    }
    serde_json::from_value(value).map_err(ReadError::Malformed)
}
