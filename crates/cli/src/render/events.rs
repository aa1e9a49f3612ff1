//! Lines of `pool events`, and the JSON that hooks get.

use forebay_pool::status::EventRecord;
use serde::Serialize;

use super::json::JSON_VERSION;
use crate::clock::history_time;
use crate::escape::visible;
use crate::explain::event_advice;

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
        event: Advised<'a>,
    }
    let line = Line { version: JSON_VERSION, event: advised(event) };
    serde_json::to_string(&line).expect("plain data becomes JSON") + "\n"
}

/// An event, how much it matters, and what to do about it.
#[derive(Serialize)]
pub struct Advised<'a> {
    #[serde(flatten)]
    event: &'a EventRecord,
    level: &'static str,
    action: String,
}

/// `event` with what its listings add.
#[must_use]
pub fn advised(event: &EventRecord) -> Advised<'_> {
    let (level, action) = event_advice(event);
    Advised { event, level: level.as_str(), action }
}
