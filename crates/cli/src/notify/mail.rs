//! Events by mail, through the sendmail of the machine.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;

use forebay_units::Nanos;

use super::config::NotifyConfig;
use super::host_name;
use super::sink::{Message, Sink};
use crate::clock::history_time;
use crate::escape::visible;
use crate::programs;

/// How long sendmail may take: less than a place has for a message, so that it is killed before
/// the mail is sent again.
const SENDMAIL_TIMEOUT: Nanos = Nanos::from_secs(29);

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
    let mut command = Command::new(&sendmail);
    command.args(["-t", "-oi"]);
    let sent = programs::run(command, text.into_bytes(), SENDMAIL_TIMEOUT).await;
    sent.map_err(|why| format!("{} {why}", sendmail.display()))
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
