//! Events of served pools to where operators look: the journal, syslog, mail, a webhook.
//!
//! What enters: events, once a second. What leaves: messages, each with what to do. What always
//! holds: a place that is slow or down delays neither the server nor another place, and gets no
//! more messages than its limit; what was left out is counted. Who calls: the serving process.

mod config;
mod journal;
mod mail;
mod sink;
mod syslog;
mod webhook;

use std::rc::Rc;

use forebay_pool::status::EventRecord;

pub use config::{NotifyConfig, Url};
pub use sink::Notice;
pub use webhook::authorities;

use crate::explain::event_advice;
use sink::Sink;

/// The name of this machine.
fn host_name() -> String {
    String::from_utf8_lossy(&forebay_rt::sys::host_name()).into_owned()
}

/// The places that events are told to.
#[derive(Default)]
pub struct Notify {
    sinks: Vec<Rc<Sink>>,
}

impl Notify {
    /// The places that `config` names, and the journal if it reads this server's messages.
    #[must_use]
    pub fn new(config: &NotifyConfig) -> Self {
        let places = [syslog::sink(config), mail::sink(config), webhook::sink(config)];
        let sinks = places.into_iter().chain([journal::sink()]);
        Self { sinks: sinks.flatten().map(Rc::new).collect() }
    }

    /// Tells `events` to all places, in their own time.
    pub fn offer(&self, events: &[EventRecord]) {
        for event in events {
            let (level, action) = event_advice(event);
            for sink in &self.sinks {
                sink.offer(Notice { event: event.clone(), level, action: action.clone() });
            }
        }
    }
}

#[cfg(test)]
mod tests;
