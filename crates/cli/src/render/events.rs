//! Lines of `pool events`, and the JSON that hooks get.

use forebay_pool::status::EventRecord;
use serde::Serialize;

use super::json::JSON_VERSION;
use crate::clock::history_time;
use crate::escape::visible;

/// One line for a person.
#[must_use]
pub fn event_text(event: &EventRecord) -> String {
    let (time, kind) = (history_time(event.time_secs), event.event.as_str());
    format!("{time} {} {kind}: {}\n", event.pool, visible(&event.text))
}

/// One line of JSON.
#[must_use]
pub fn event_json(event: &EventRecord) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        version: u32,
        #[serde(flatten)]
        event: &'a EventRecord,
    }
    let line = Line { version: JSON_VERSION, event };
    serde_json::to_string(&line).expect("plain data becomes JSON") + "\n"
}
