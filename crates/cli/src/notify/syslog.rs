//! Events as lines of syslog: one datagram each, to a local socket.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_units::Nanos;

use super::config::NotifyConfig;
use super::sink::{Message, Notice, Sink};
use crate::escape::visible;
use crate::log::Level;

/// The facility of daemons.
const DAEMON: u8 = 3;
/// What every implementation takes.
const LINE_MAX_BYTES: usize = 1024;

/// The sink, if it is configured. All events go there, for syslog has rules of its own.
pub(super) fn sink(config: &NotifyConfig) -> Option<Sink> {
    let path = config.syslog.clone()?;
    Some(Sink {
        name: "syslog",
        least: Level::Info,
        batch_max: 32,
        messages_max: 60,
        window: Nanos::from_secs(60),
        send: Box::new(move |message| Box::pin(send(path.clone(), message))),
        state: Default::default(),
    })
}

async fn send(path: PathBuf, message: Rc<Message>) -> Result<(), String> {
    let pid = std::process::id();
    let mut lines: Vec<String> = message.notices.iter().map(|notice| line(notice, pid)).collect();
    if message.missed > 0 {
        let priority = DAEMON * 8 + Level::Warning as u8;
        let missed = message.missed;
        lines.push(format!("<{priority}>forebay[{pid}]: {missed} events were left out"));
    }
    let sending = rt::aside(move || {
        let socket = UnixDatagram::unbound()?;
        lines.iter().try_for_each(|line| socket.send_to(line.as_bytes(), &path).map(|_| ()))
    });
    sending.await.map_err(|e: std::io::Error| e.to_string())
}

/// As of RFC 3164 without the time, which syslog adds.
pub(super) fn line(notice: &Notice, pid: u32) -> String {
    let priority = DAEMON * 8 + notice.level as u8;
    let event = &notice.event;
    let kind = event.event.as_str();
    let mut line =
        format!("<{priority}>forebay[{pid}]: pool '{}' {kind}: {}", event.pool, event.text);
    if !notice.action.is_empty() {
        line.push_str(&format!(". {}", notice.action));
    }
    let mut line = visible(&line).to_string();
    while line.len() > LINE_MAX_BYTES {
        line.pop();
    }
    line
}
