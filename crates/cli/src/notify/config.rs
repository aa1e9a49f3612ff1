//! What the table `[events]` of a configuration file says.

use std::path::PathBuf;

use crate::log::Level;

/// Where events are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifyConfig {
    /// The socket of syslog.
    pub syslog: Option<PathBuf>,
    /// Who gets mail.
    pub mail: Option<String>,
    /// What sends it.
    pub sendmail: PathBuf,
    /// Messages in an hour at most.
    pub mails_per_hour: usize,
    /// Where JSON is posted.
    pub webhook: Option<Url>,
    /// The authorities of its certificate (PEM).
    pub webhook_ca: PathBuf,
    /// The least that mail and webhook are told of.
    pub least: Level,
}

impl Default for NotifyConfig {
    fn default() -> Self {
        Self {
            syslog: None,
            mail: None,
            sendmail: "/usr/sbin/sendmail".into(),
            mails_per_hour: 6,
            webhook: None,
            webhook_ca: "/etc/ssl/certs/ca-certificates.crt".into(),
            least: Level::Warning,
        }
    }
}

/// An address of the web.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// With TLS.
    pub is_https: bool,
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path and query.
    pub target: String,
}

impl Url {
    /// Reads `http://HOST[:PORT][/PATH]` or `https://…`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected https://HOST/PATH or http://HOST/PATH, not '{text}'");
        let (is_https, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(wrong()),
        };
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(at);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (authority, if is_https { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_plain = |c: char| c.is_ascii_graphic();
        if host.is_empty() || host.contains('@') || !text.chars().all(is_plain) {
            return Err(wrong());
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok(Self { is_https, host: host.to_owned(), port, target })
    }
}
