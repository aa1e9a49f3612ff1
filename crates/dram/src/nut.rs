//! A client of Network UPS Tools: the line protocol, and a supply that is asked through it.
//!
//! The protocol is `docs/net-protocol.txt` of Network UPS Tools, version 1.3: lines of words, of
//! which those with spaces stand in double quotes, with `\` before a quote or a backslash.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;

use forebay_device::Cause;
use forebay_rt as rt;
use forebay_rt::net::{Stream, resolve};
use forebay_units::Nanos;

use crate::power::{PowerReading, PowerSource, Reading};

/// The port that IANA has assigned to it.
const DEFAULT_PORT: u16 = 3493;
/// How long an answer may take.
const ANSWER_TIMEOUT: Nanos = Nanos::from_secs(2);
/// The longest line of an answer.
const LINE_MAX_BYTES: usize = 1024;

/// Where a supply is: `NAME@HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpsName {
    ups: String,
    host: String,
    port: u16,
}

impl UpsName {
    /// Reads `NAME[@HOST[:PORT]]`, as upsc(8) does. `None` if it is not of this form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (ups, place) = text.split_once('@').unwrap_or((text, "localhost"));
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !host.ends_with(':') && !host.contains(':') => {
                (host, port.parse().ok()?)
            }
            // An address of IPv6 in brackets, with or without a port.
            Some((host, port)) if host.ends_with(']') => (host, port.parse().ok()?),
            _ => (place, DEFAULT_PORT),
        };
        let host = host.trim_matches(['[', ']']);
        let is_word = |text: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
            !text.is_empty() && text.len() <= 255 && text.chars().all(allowed)
        };
        let is_name = is_word(ups) && is_word(host) && port != 0;
        is_name.then(|| Self { ups: ups.to_owned(), host: host.to_owned(), port })
    }
}

/// Why a supply could not be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NutError {
    /// The connection could not be made, or ended.
    Connection {
        /// The server.
        server: String,
        /// How.
        kind: io::ErrorKind,
    },
    /// No answer came in time.
    Silent {
        /// The server.
        server: String,
    },
    /// The server refused.
    Refused {
        /// Its word for the reason, such as `DATA-STALE` or `UNKNOWN-UPS`.
        word: String,
    },
    /// The answer is of another form.
    Malformed {
        /// The answer.
        line: String,
    },
}

impl fmt::Display for NutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection { server, kind } => write!(f, "upsd at {server}: {kind}"),
            Self::Silent { server } => write!(f, "upsd at {server} does not answer"),
            Self::Refused { word } => write!(f, "upsd says {word}"),
            Self::Malformed { line } => write!(f, "upsd answers '{line}'"),
        }
    }
}

impl std::error::Error for NutError {}

/// The words of a line. `None` if a quote is not closed.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = line.chars().peekable();
    loop {
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        let Some(first) = rest.peek() else { return Some(words) };
        let is_quoted = *first == '"';
        if is_quoted {
            rest.next();
        }
        let mut word = String::new();
        loop {
            match rest.next() {
                None if is_quoted => return None,
                None => break,
                Some('"') if is_quoted => break,
                Some(c) if !is_quoted && c.is_whitespace() => break,
                Some('\\') => word.push(rest.next()?),
                Some(c) => word.push(c),
            }
        }
        words.push(word);
    }
}

/// The value in an answer to `GET VAR`.
fn value_of(line: &str, ups: &str, variable: &str) -> Result<String, NutError> {
    let malformed = || NutError::Malformed { line: line.chars().take(80).collect() };
    let found = words(line).ok_or_else(malformed)?;
    match &found.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ERR", word, ..] => Err(NutError::Refused { word: (*word).to_owned() }),
        ["VAR", of, name, value] if *of == ups && *name == variable => Ok((*value).to_owned()),
        _ => Err(malformed()),
    }
}

/// A connection, and what was received past the last line.
struct Connection {
    stream: Stream,
    received: Vec<u8>,
}

impl Connection {
    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line[..end]);
                return Ok(line.trim_end_matches('\r').to_owned());
            }
            if self.received.len() >= LINE_MAX_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let (outcome, part) = self.stream.recv(vec![0; LINE_MAX_BYTES], 0).await;
            match outcome? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => self.received.extend_from_slice(&part[..len]),
            }
        }
    }
}

/// A supply behind a server of Network UPS Tools. It is asked without a login, so the server's
/// shutdown does not wait for this client.
pub struct NutSource {
    name: UpsName,
    connection: RefCell<Option<Connection>>,
}

impl NutSource {
    /// The supply of this name. Connects when it is asked.
    #[must_use]
    pub fn new(name: UpsName) -> Rc<Self> {
        Rc::new(Self { name, connection: RefCell::new(None) })
    }

    fn server(&self) -> String {
        format!("{}:{}", self.name.host, self.name.port)
    }

    async fn connect(&self) -> io::Result<Connection> {
        let (host, port) = (self.name.host.clone(), self.name.port);
        let addresses = rt::aside(move || resolve(&host, port)).await?;
        let mut outcome = Err(io::ErrorKind::NotFound.into());
        for address in addresses {
            outcome = Stream::connect_tcp(address).await;
            if outcome.is_ok() {
                break;
            }
        }
        Ok(Connection { stream: outcome?, received: Vec::new() })
    }

    /// One variable; `None` if the supply does not have it.
    async fn ask(
        &self,
        connection: &mut Connection,
        variable: &str,
    ) -> Result<Option<String>, NutError> {
        let failed = |e: io::Error| NutError::Connection { server: self.server(), kind: e.kind() };
        let request = format!("GET VAR {} {variable}\n", self.name.ups).into_bytes();
        connection.stream.send_all(request).await.0.map_err(failed)?;
        let line = connection.line().await.map_err(failed)?;
        match value_of(&line, &self.name.ups, variable) {
            Err(NutError::Refused { word }) if word == "VAR-NOT-SUPPORTED" => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    async fn ask_all(&self) -> Result<PowerReading, NutError> {
        let kept = self.connection.borrow_mut().take();
        let mut connection = match kept {
            Some(connection) => connection,
            None => self
                .connect()
                .await
                .map_err(|e| NutError::Connection { server: self.server(), kind: e.kind() })?,
        };
        let status = self.ask(&mut connection, "ups.status").await?.unwrap_or_default();
        let runtime = self.ask(&mut connection, "battery.runtime").await?;
        // Some drivers report parts of a second.
        let runtime_secs = runtime.and_then(|text| text.split('.').next()?.parse().ok());
        // A connection that has failed is not asked again.
        *self.connection.borrow_mut() = Some(connection);
        Ok(PowerReading { status, runtime_secs })
    }
}

impl PowerSource for NutSource {
    fn read(&self) -> Reading<'_> {
        Box::pin(async move {
            let asked = rt::timeout(ANSWER_TIMEOUT, self.ask_all()).await;
            let silent = || Err(NutError::Silent { server: self.server() });
            asked.unwrap_or_else(|rt::Elapsed| silent()).map_err(Cause::new)
        })
    }
}

#[cfg(test)]
mod tests;
