//! The envelope of every JSON document.

use serde::Serialize;

use crate::failure::Failure;

/// Version of the JSON of every listing. Raised when a field changes its meaning or goes.
pub const JSON_VERSION: u32 = forebay_pool::status::STATUS_VERSION;

#[derive(Serialize)]
struct Document<'a, T> {
    version: u32,
    command: &'a str,
    #[serde(flatten)]
    body: T,
}

/// A JSON document: `version`, `command`, and the fields of `body`. Ends with a line feed.
pub fn document<T: Serialize>(command: &str, body: T) -> String {
    let document = Document { version: JSON_VERSION, command, body };
    let mut text = serde_json::to_string_pretty(&document).expect("plain data");
    text.push('\n');
    text
}

/// The JSON document of a command that failed: `version` and `error`.
#[must_use]
pub fn failure_json(failure: &Failure) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        version: u32,
        error: &'a Failure,
    }
    let body = Body { version: JSON_VERSION, error: failure };
    let mut text = serde_json::to_string_pretty(&body).expect("plain data");
    text.push('\n');
    text
}
