//! Events as entries of systemd's journal with fields of their own, in its native protocol.
//!
//! What enters: events of a server whose messages the journal reads. What leaves: one datagram an
//! event, with the fields that hooks get as variables.

use std::os::unix::net::UnixDatagram;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_units::Nanos;

use super::sink::{Message, Notice, Sink};
use crate::escape::visible;
use crate::log::{self, Level};

const SOCKET: &str = "/run/systemd/journal/socket";
/// Far below what a datagram takes.
const VALUE_MAX_BYTES: usize = 4096;

/// The sink of a server whose messages go to the journal.
pub(super) fn sink() -> Option<Sink> {
    log::is_journaled().then(|| Sink {
        name: "journal",
        least: Level::Info,
        batch_max: 32,
        messages_max: 60,
        window: Nanos::from_secs(60),
        send: Box::new(|message| Box::pin(send(message))),
        state: Default::default(),
    })
}

async fn send(message: Rc<Message>) -> Result<(), String> {
    let mut entries: Vec<Vec<u8>> = message.notices.iter().map(entry).collect();
    if message.missed > 0 {
        let text = format!("{} events were left out", message.missed);
        entries.push(encode(&[("MESSAGE", text), priority(Level::Warning), identifier()]));
    }
    let sending = rt::aside(move || {
        let socket = UnixDatagram::unbound()?;
        entries.iter().try_for_each(|entry| socket.send_to(entry, SOCKET).map(|_| ()))
    });
    sending.await.map_err(|e: std::io::Error| format!("{SOCKET}: {e}"))
}

fn priority(level: Level) -> (&'static str, String) {
    ("PRIORITY", (level as u8).to_string())
}

fn identifier() -> (&'static str, String) {
    ("SYSLOG_IDENTIFIER", "forebay".to_owned())
}

/// The entry of an event.
pub(super) fn entry(notice: &Notice) -> Vec<u8> {
    let event = &notice.event;
    let kind = event.event.as_str();
    let mut fields = vec![
        ("MESSAGE", format!("pool '{}' {kind}: {}", event.pool, event.text)),
        priority(notice.level),
        identifier(),
        ("FOREBAY_POOL", event.pool.clone()),
        ("FOREBAY_POOL_GUID", event.guid.to_string()),
        ("FOREBAY_EVENT", kind.to_owned()),
        ("FOREBAY_SEQUENCE", event.sequence.to_string()),
    ];
    fields.extend(event.device.clone().map(|device| ("FOREBAY_DEVICE", device)));
    if !notice.action.is_empty() {
        fields.push(("FOREBAY_ACTION", notice.action.clone()));
    }
    encode(&fields)
}

/// `NAME=value` a line. Values have no control characters, so none needs the binary form.
fn encode(fields: &[(&str, String)]) -> Vec<u8> {
    let mut entry = String::new();
    for (name, value) in fields {
        let mut value = visible(value).to_string();
        while value.len() > VALUE_MAX_BYTES {
            value.pop();
        }
        entry.push_str(&format!("{name}={value}\n"));
    }
    entry.into_bytes()
}
