//! Who may read: the token, and the names under which a page without a token answers.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use ring::digest::{SHA256, digest};

use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::http::{Request, Response};

/// The shortest token that is taken: 96 bits as hexadecimal digits, or a long sentence.
const TOKEN_MIN_BYTES: usize = 24;
/// The longest file with a token that is read.
const FILE_MAX_BYTES: u64 = 4096;

/// What a reader has to know.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Tokens are compared by their digests: how long that takes says nothing of them.
    digest: Vec<u8>,
}

impl Token {
    fn new(text: &str) -> Self {
        Self { digest: digest(&SHA256, text.as_bytes()).as_ref().to_vec() }
    }

    /// The token in the file at `path`: its first line.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |what: String| {
            let message = format!("the token in {}: {what}", path.display());
            Failure::new(ErrorCode::ServiceConfig, message).with_hint(
                "'openssl rand -hex 32 >FILE' makes one; chmod 600 keeps it to its owner",
            )
        };
        let mut text = String::new();
        let file = files::open_to_read(path).map_err(|e| failed(e.to_string()))?;
        let meta = file.metadata().map_err(|e| failed(e.to_string()))?;
        if std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o007 != 0 {
            return Err(failed(
                "every user of this machine can read or change the file".to_owned(),
            ));
        }
        file.take(FILE_MAX_BYTES).read_to_string(&mut text).map_err(|e| failed(e.to_string()))?;
        let line = text.lines().next().unwrap_or_default().trim();
        if line.len() < TOKEN_MIN_BYTES {
            return Err(failed(format!("it has fewer than {TOKEN_MIN_BYTES} characters")));
        }
        Ok(Self::new(line))
    }
}

/// Who may read.
pub struct Access {
    token: Option<Token>,
}

impl Access {
    /// Everyone who can reach `address` when that is on loopback, else those who have the token.
    pub fn new(address: SocketAddr, token: Option<Token>) -> Result<Self, Failure> {
        if token.is_none() && !address.ip().is_loopback() {
            let message = format!(
                "other machines can reach {address}: the page is not shown there without a token"
            );
            return Err(Failure::usage(message)
                .with_hint("give --web-token FILE, or listen on 127.0.0.1 and use 'ssh -L'"));
        }
        Ok(Self { token })
    }

    /// Whether a request shows the token, where there is one. Without a token, requests for names
    /// other than those of this machine are refused: a page of another site could make a browser
    /// send them (DNS rebinding).
    pub(super) fn check(&self, request: &Request) -> Result<bool, Response> {
        let Some(token) = &self.token else {
            let host = request.header("host").unwrap_or_default();
            return match is_own_name(host) {
                true => Ok(true),
                false => Err(Response::refusal(
                    "421 Misdirected Request",
                    "this page answers to localhost and to addresses in numbers",
                )),
            };
        };
        let shown = request.header("authorization").and_then(|text| text.strip_prefix("Bearer "));
        Ok(shown.is_some_and(|text| Token::new(text.trim()) == *token))
    }
}

/// Whether the header `Host` has a name that no other site can have.
fn is_own_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}
