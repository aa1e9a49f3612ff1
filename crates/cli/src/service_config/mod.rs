//! Configuration file of a server: listeners, TLS, allow-list, limits, pools (TOML).
//!
//! What enters: a path. What leaves: [`ServiceConfig`], or a failure that names file, line and what
//! was expected. What always holds: unknown keys are refused; nothing outside the file is touched.
//! Who calls: `forebay serve --config` and `--check`. `docs/service.md` lists the keys.

mod events;
mod limits;
mod values;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_nbd::{AllowList, Limits};
use serde::Deserialize;
use toml::Spanned;

use crate::args::{ListenAddress, SecurityArgs, WebArgs};
use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::notify::NotifyConfig;

use self::events::Events;
use self::values::{AbsolutePath, Address, Quantity};

pub use limits::values as limit_values;

/// The file that the service reads.
pub const DEFAULT_PATH: &str = "/etc/forebay/forebay.toml";
/// The longest file that is read: a larger file is no configuration.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// What a configuration file says. What it leaves out has its default value.
#[derive(Clone, Debug, Default)]
pub struct ServiceConfig {
    /// Where to listen; empty for the default addresses.
    pub listen: Vec<ListenAddress>,
    /// Where to answer scrapes.
    pub metrics: Option<SocketAddr>,
    /// Where the web page is shown, and the file with its token.
    pub web: WebArgs,
    /// Where the sockets of virtual machines are.
    pub vhost_user: Option<PathBuf>,
    /// TLS files, and whether plain text is allowed everywhere.
    pub security: SecurityArgs,
    /// The `[allow]` table.
    pub allow: Option<AllowList>,
    /// Where events are told.
    pub notify: NotifyConfig,
    /// Limits of clients.
    pub limits: Limits,
    /// The pools to serve; empty for all known ones.
    pub pools: Vec<String>,
    /// Where to look for the pools; empty for where they were.
    pub directories: Vec<PathBuf>,
    source: Source,
}

/// The text of the file, and where some of its keys are.
#[derive(Clone, Debug, Default)]
struct Source {
    path: PathBuf,
    text: String,
    listen: Vec<Range<usize>>,
    pools: Vec<Range<usize>>,
    tls: Option<Range<usize>>,
    web: Option<Range<usize>>,
    events: Vec<(&'static str, Range<usize>)>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    listen: Vec<Spanned<String>>,
    plaintext: Option<Spanned<bool>>,
    pools: Vec<Spanned<String>>,
    directories: Vec<Spanned<PathBuf>>,
    metrics: Option<Spanned<String>>,
    web: Option<Spanned<String>>,
    web_token: Option<Spanned<AbsolutePath>>,
    vhost_user: Option<Spanned<AbsolutePath>>,
    tls: Tls,
    events: Events,
    allow: Option<Spanned<BTreeMap<String, Vec<String>>>>,
    limits: BTreeMap<String, Spanned<Quantity>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Tls {
    cert: Option<Spanned<AbsolutePath>>,
    key: Option<Spanned<AbsolutePath>>,
    ca: Option<Spanned<AbsolutePath>>,
    allow: Option<Spanned<AbsolutePath>>,
}

/// What is wrong in a file, and where.
struct Problem {
    at: Range<usize>,
    message: String,
}

fn problem<T>(at: Range<usize>, message: impl Into<String>) -> Result<T, Problem> {
    Err(Problem { at, message: message.into() })
}

impl ServiceConfig {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |e: std::io::Error| {
            let message = format!("configuration {}: {e}", path.display());
            let failure = Failure::new(ErrorCode::ServiceConfig, message);
            match e.kind() {
                ErrorKind::NotFound => failure
                    .with_hint("name an existing file with --config, or leave the option out"),
                _ => failure,
            }
        };
        let mut text = String::new();
        let file = files::open_to_read(path).map_err(failed)?;
        file.take(FILE_MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
        Self::parse(path, &text)
    }

    /// Reads `text`, the content of `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Failure> {
        let source = Source { path: path.to_owned(), text: text.to_owned(), ..Source::default() };
        let read = toml::from_str::<Document>(text)
            .map_err(|e| Problem {
                at: e.span().unwrap_or(0..0),
                message: e.message().trim().replace('\n', " "),
            })
            .and_then(Document::checked);
        match read {
            Ok(config) => {
                let places = config.source;
                let source = Source { path: source.path, text: source.text, ..places };
                Ok(Self { source, ..config })
            }
            Err(problem) => Err(source.failure(problem.at, &problem.message)),
        }
    }

    /// The failure that address number `index` of `listen` cannot be used.
    #[must_use]
    pub fn listen_failure(&self, index: usize, message: &str) -> Failure {
        self.source.failure(self.source.listen[index].clone(), message)
    }

    /// The failure that pool number `index` of `pools` cannot be served.
    #[must_use]
    pub fn pool_failure(&self, index: usize, message: &str) -> Failure {
        self.source.failure(self.source.pools[index].clone(), message)
    }

    /// The failure that the files of `[tls]` cannot be used.
    #[must_use]
    pub fn tls_failure(&self, message: &str) -> Failure {
        self.source.failure(self.source.tls.clone().unwrap_or(0..0), message)
    }

    /// The failure that events cannot be told to the place `key` of `[events]`.
    #[must_use]
    pub fn events_failure(&self, key: &str, message: &str) -> Failure {
        let place = self.source.events.iter().find(|(name, _)| *name == key);
        let at = place.map_or(0..0, |(_, at)| at.clone());
        self.source.failure(at, &format!("events.{key}: {message}"))
    }

    /// The failure that the page cannot be shown.
    #[must_use]
    pub fn web_failure(&self, message: &str) -> Failure {
        self.source.failure(self.source.web.clone().unwrap_or(0..0), message)
    }

    /// Replaces what the command line names by what it says.
    pub fn override_with(
        &mut self,
        listen: &[ListenAddress],
        security: &SecurityArgs,
        pools: &[String],
        directories: &[PathBuf],
    ) -> Result<(), Failure> {
        if !listen.is_empty() {
            self.listen = listen.to_vec();
            self.source.listen.clear();
        }
        if !pools.is_empty() {
            self.pools = pools.to_vec();
            self.source.pools.clear();
        }
        if !directories.is_empty() {
            self.directories = directories.to_vec();
        }
        if security.tls_allow.is_some() {
            self.allow = None;
        }
        self.security.override_with(security);
        self.security.check(self.allow.is_some())
    }

    /// Fails when metrics or web page, which are at `places` of the file, are to have the address
    /// of another listener.
    fn check_shared(&self, places: [Option<Range<usize>>; 2]) -> Result<(), Problem> {
        let tcp = self.listen.iter().filter_map(|address| match address {
            ListenAddress::Tcp(address) => Some(("listen", *address)),
            ListenAddress::Unix(_) => None,
        });
        let mut taken: Vec<(&str, SocketAddr)> = tcp.collect();
        let more = [("metrics", self.metrics), ("web", self.web.address)];
        for ((name, address), at) in more.into_iter().zip(places) {
            let (Some(address), Some(at)) = (address, at) else { continue };
            if let Some((other, _)) = taken.iter().find(|(_, other)| overlap(*other, address)) {
                return problem(at, format!("{name}: {other} has this address already"));
            }
            taken.push((name, address));
        }
        Ok(())
    }

    /// Whether `listen` comes from the file.
    #[must_use]
    pub fn lists_addresses(&self) -> bool {
        !self.source.listen.is_empty()
    }

    /// Whether `pools` comes from the file.
    #[must_use]
    pub fn lists_pools(&self) -> bool {
        !self.source.pools.is_empty()
    }
}

impl Document {
    fn checked(self) -> Result<ServiceConfig, Problem> {
        let Tls { cert, key, ca, allow } = &self.tls;
        match (cert, key, ca, allow) {
            (Some(cert), None, ..) => {
                return problem(cert.span(), "tls.cert needs tls.key, the file of its private key");
            }
            (None, Some(key), ..) => {
                return problem(key.span(), "tls.key needs tls.cert, the file of the certificate");
            }
            (None, None, Some(ca), _) => {
                return problem(ca.span(), "tls.ca needs tls.cert and tls.key");
            }
            (.., None, Some(allow)) => {
                return problem(
                    allow.span(),
                    "tls.allow needs tls.ca, which proves who a client is",
                );
            }
            _ => {}
        }
        if let Some(table) = &self.allow {
            if ca.is_none() {
                return problem(table.span(), "[allow] needs tls.ca, which proves who a client is");
            }
            if allow.is_some() {
                return problem(table.span(), "expected [allow] or tls.allow, not both");
            }
        }
        let plaintext = self.plaintext.as_ref().filter(|plaintext| *plaintext.get_ref());
        if let (Some(plaintext), Some(_)) = (plaintext, cert) {
            let message = "expected plaintext = true or tls.cert, not both";
            return problem(plaintext.span(), message);
        }
        let tls = cert.as_ref().map(Spanned::span);
        let places = [&self.metrics, &self.web].map(|text| text.as_ref().map(Spanned::span));
        let file = |path: Option<Spanned<AbsolutePath>>| path.map(|path| path.into_inner().0);
        let config = ServiceConfig {
            source: Source {
                listen: self.listen.iter().map(Spanned::span).collect(),
                pools: self.pools.iter().map(Spanned::span).collect(),
                tls,
                web: self.web.as_ref().map(Spanned::span),
                events: self.events.places(),
                ..Source::default()
            },
            metrics: self.metrics.map(|text| tcp_address("metrics", 9816, &text)).transpose()?,
            web: WebArgs {
                address: self.web.map(|text| tcp_address("web", 8426, &text)).transpose()?,
                token: file(self.web_token),
            },
            vhost_user: file(self.vhost_user),
            listen: addresses(self.listen)?,
            pools: self.pools.into_iter().map(Spanned::into_inner).collect(),
            directories: each::<_, AbsolutePath>(self.directories)?
                .into_iter()
                .map(|path| path.0)
                .collect(),
            security: SecurityArgs {
                tls_cert: file(self.tls.cert),
                tls_key: file(self.tls.key),
                tls_ca: file(self.tls.ca),
                tls_allow: file(self.tls.allow),
                plaintext: self.plaintext.is_some_and(Spanned::into_inner),
            },
            allow: self.allow.map(|table| AllowList::new(table.into_inner())),
            notify: self.events.checked()?,
            limits: limits::read(&self.limits)?,
        };
        config.check_shared(places).map(|()| config)
    }
}

fn tcp_address(key: &str, port: u16, text: &Spanned<String>) -> Result<SocketAddr, Problem> {
    text.get_ref().parse().or_else(|_| {
        let message = format!(
            "{key}: expected an address and a port such as 127.0.0.1:{port}, not '{}'",
            text.get_ref()
        );
        problem(text.span(), message)
    })
}

/// Whether the kernel gives only one of two listeners these addresses.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let has_all =
        |all: IpAddr, some: IpAddr| all.is_unspecified() && (all.is_ipv6() || some.is_ipv4());
    let (a, b) = (one.ip(), other.ip());
    let is_free = one.port() == 0 || one.port() != other.port();
    !is_free && (a == b || has_all(a, b) || has_all(b, a))
}

/// The addresses to listen on, each of which can be had once.
fn addresses(values: Vec<Spanned<String>>) -> Result<Vec<ListenAddress>, Problem> {
    let places: Vec<Range<usize>> = values.iter().map(Spanned::span).collect();
    let found: Vec<ListenAddress> = each::<_, Address>(values)?.into_iter().map(|a| a.0).collect();
    let is_any_port = |at: usize| matches!(found[at], ListenAddress::Tcp(tcp) if tcp.port() == 0);
    let is_again = |at: &usize| !is_any_port(*at) && found[..*at].contains(&found[*at]);
    match (1..found.len()).find(is_again) {
        Some(at) => problem(places[at].clone(), "this address is named twice"),
        None => Ok(found),
    }
}

/// The values of an array. The reader itself gives an error in one of them the place of the array.
fn each<T, V: TryFrom<T, Error = String>>(values: Vec<Spanned<T>>) -> Result<Vec<V>, Problem> {
    let convert = |value: Spanned<T>| {
        let at = value.span();
        V::try_from(value.into_inner()).map_err(|message| Problem { at, message })
    };
    values.into_iter().map(convert).collect()
}

impl Source {
    /// `message` with file and line, and what the line says.
    fn failure(&self, at: Range<usize>, message: &str) -> Failure {
        let start = at.start.min(self.text.len());
        let before = &self.text.as_bytes()[..start];
        let number = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let line = self.text.lines().nth(number - 1).unwrap_or_default().trim();
        let path = self.path.display();
        let message = match line.is_empty() {
            true => format!("{path}, line {number}: {message}"),
            false => format!("{path}, line {number} ({line}): {message}"),
        };
        Failure::new(ErrorCode::ServiceConfig, message)
    }
}

#[cfg(test)]
mod tests;
