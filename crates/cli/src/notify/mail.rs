//! Events by mail, through the sendmail of the machine.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use forebay_rt as rt;
use forebay_units::Nanos;

use super::config::NotifyConfig;
use super::host_name;
use super::sink::{Message, Sink};
use crate::clock::history_time;
use crate::escape::visible;

/// The sink, if it is configured. What happens while the limit holds comes in one mail later.
pub(super) fn sink(config: &NotifyConfig) -> Option<Sink> {
    let (to, sendmail) = (config.mail.clone()?, config.sendmail.clone());
    Some(Sink {
        name: "mail",
        least: config.least,
        batch_max: 64,
        messages_max: config.mails_per_hour,
        window: Nanos::from_secs(3600),
        send: Box::new(move |message| {
            let text = mail(&to, &host_name(), &message);
            Box::pin(send(sendmail.clone(), text))
        }),
        state: Default::default(),
    })
}

async fn send(sendmail: PathBuf, text: String) -> Result<(), String> {
    rt::aside(move || deliver(&sendmail, &text)).await
}

fn deliver(sendmail: &Path, text: &str) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", sendmail.display());
    let mut child = Command::new(sendmail)
        .args(["-t", "-oi"])
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    // One that does not read its input says why by its end.
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(text.as_bytes()));
    let status = child.wait().map_err(failed)?;
    match status.success() {
        true => written.map_err(failed),
        false => Err(format!("{} ended with {status}", sendmail.display())),
    }
}

/// The whole mail. Headers have nothing of an event but its kind and the pool's name, which has no
/// line feeds.
pub(super) fn mail(to: &str, host: &str, message: &Rc<Message>) -> String {
    let Message { notices, missed } = &**message;
    let gravest = notices.iter().min_by_key(|notice| notice.level);
    let subject = gravest.map_or(String::new(), |notice| {
        let (pool, kind) = (&notice.event.pool, notice.event.event.as_str());
        let more = match notices.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        format!("{pool}: {kind}{more}")
    });
    let mut text = format!(
        "To: {to}\nSubject: [forebay {host}] {}\nAuto-Submitted: auto-generated\n\
         MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\
         Content-Transfer-Encoding: 8bit\n\n",
        visible(&subject)
    );
    for notice in notices {
        let event = &notice.event;
        let (time, kind) = (history_time(event.time_secs), event.event.as_str());
        text.push_str(&format!("{time} {} {kind}\n{}\n", event.pool, visible(&event.text)));
        if !notice.action.is_empty() {
            text.push_str(&format!("{}\n", visible(&notice.action)));
        }
        text.push('\n');
    }
    if *missed > 0 {
        text.push_str(&format!("{missed} more events were left out.\n"));
    }
    text
}
