//! The `[events]` table: where events are told.

use serde::Deserialize;
use toml::Spanned;

use super::values::AbsolutePath;
use super::{Problem, problem};
use crate::log::Level;
use crate::notify::{NotifyConfig, Url};

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Events {
    syslog: Option<Spanned<AbsolutePath>>,
    mail: Option<Spanned<String>>,
    sendmail: Option<Spanned<AbsolutePath>>,
    mails_per_hour: Option<Spanned<u64>>,
    webhook: Option<Spanned<String>>,
    webhook_ca: Option<Spanned<AbsolutePath>>,
    level: Option<Spanned<String>>,
}

impl Events {
    /// Where `syslog`, `mail` and `webhook` are.
    pub(super) fn places(&self) -> Vec<(&'static str, std::ops::Range<usize>)> {
        let places = [
            ("syslog", self.syslog.as_ref().map(Spanned::span)),
            ("mail", self.mail.as_ref().map(Spanned::span)),
            ("webhook", self.webhook.as_ref().map(Spanned::span)),
        ];
        places.into_iter().filter_map(|(key, at)| Some((key, at?))).collect()
    }

    pub(super) fn checked(self) -> Result<NotifyConfig, Problem> {
        let mut config = NotifyConfig {
            syslog: self.syslog.map(|path| path.into_inner().0),
            ..NotifyConfig::default()
        };
        if let Some(mail) = self.mail {
            let text = mail.get_ref();
            let is_address = |c: char| c.is_ascii_graphic() && !",;<>()".contains(c);
            if text.is_empty() || text.starts_with('-') || !text.chars().all(is_address) {
                let message = format!("mail: expected one address, not '{}'", text.escape_debug());
                return problem(mail.span(), message);
            }
            config.mail = Some(mail.into_inner());
        }
        if let Some(path) = self.sendmail {
            config.sendmail = path.into_inner().0;
        }
        if let Some(count) = self.mails_per_hour {
            if !(1..=3600).contains(count.get_ref()) {
                return problem(count.span(), "mails_per_hour: expected a number from 1 to 3600");
            }
            config.mails_per_hour = count.into_inner() as usize;
        }
        if let Some(url) = self.webhook {
            let parsed = Url::parse(url.get_ref());
            let at = url.span();
            config.webhook = Some(parsed.or_else(|e| problem(at, format!("webhook: {e}")))?);
        }
        if let Some(path) = self.webhook_ca {
            config.webhook_ca = path.into_inner().0;
        }
        if let Some(level) = self.level {
            config.least = match level.get_ref().as_str() {
                "info" => Level::Info,
                "notice" => Level::Notice,
                "warning" => Level::Warning,
                "error" => Level::Error,
                _ => {
                    let message = "level: expected info, notice, warning or error";
                    return problem(level.span(), message);
                }
            };
        }
        Ok(config)
    }
}
