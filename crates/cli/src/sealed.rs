//! Authenticated messages between a witness and the machine under test.
//!
//! What enters: a shared key, a stream. What leaves: messages of the key's holder, each once and in
//! order. What always holds: with a key, a message that fails its check is never acted on. Nothing
//! is encrypted. Who calls: `commands::witness`, `commands::qualify::power_cut`.

use std::cell::Cell;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::net::Stream;
use forebay_units::Nanos;
use ring::hmac;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::{WireError, receive, send};
use crate::failure::{ErrorCode, Failure};
use crate::files;

/// The environment's name for the key.
pub const KEY_VARIABLE: &str = "FOREBAY_WITNESS_KEY";
/// A key that is shorter can be guessed.
const KEY_MIN_BYTES: usize = 16;
const KEY_MAX_BYTES: u64 = 4096;
/// What the operator can type to make a key.
pub const KEY_HINT: &str = "'head -c 32 /dev/urandom | base64 >FILE' makes a key, which both \
                            hosts take by --key-file FILE (mode 0600) or FOREBAY_WITNESS_KEY";
const GREETING_TIME: Nanos = Nanos::from_secs(10);
const GREETING_MAX_BYTES: usize = 1024;
const NONCE_BYTES: usize = 32;

/// The key that a witness and a machine under test share.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl Key {
    /// The key of `file`, else of the environment; `None` where neither is given.
    pub fn find(file: Option<&Path>) -> Result<Option<Self>, Failure> {
        let Some(path) = file else {
            let text = std::env::var(KEY_VARIABLE).ok().filter(|text| !text.is_empty());
            return text.map(|text| Self::new(text.trim().as_bytes(), KEY_VARIABLE)).transpose();
        };
        let shown = path.display().to_string();
        let failed = |e: std::io::Error| Failure::io(&shown, &e);
        let file = files::open_to_read(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            let message = format!("{shown} is open to other users (mode {:o})", mode & 0o777);
            return Err(Failure::usage(message).with_hint(format!("chmod 600 {shown}")));
        }
        let mut bytes = Vec::new();
        file.take(KEY_MAX_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        Self::new(bytes.trim_ascii(), &shown).map(Some)
    }

    fn new(bytes: &[u8], source: &str) -> Result<Self, Failure> {
        if bytes.len() < KEY_MIN_BYTES {
            let message = format!("{source}: a key of {} bytes is too short", bytes.len());
            return Err(Failure::usage(message).with_hint(KEY_HINT));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    /// A code over `label` and the random numbers of both sides.
    fn derive(&self, label: &str, machine: &str, witness: &str) -> hmac::Tag {
        hmac::sign(&self.0, format!("{label} {machine} {witness}").as_bytes())
    }
}

/// The first message of each side. A side without a key sends no random number.
#[derive(Serialize, Deserialize)]
struct Greeting {
    nonce: Option<String>,
    /// Of the witness: that it has the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    proof: Option<String>,
}

/// A message and its code.
#[derive(Serialize, Deserialize)]
struct Sealed {
    text: String,
    code: String,
}

/// Why there is no channel, or no next message.
#[derive(Debug)]
pub enum SealError {
    /// The stream failed, or carried something else.
    Wire(WireError),
    /// The peer did not greet in time.
    Late,
    /// This side has no key, and the peer asks for one.
    KeyMissing,
    /// This side has a key, and the peer has none.
    PeerHasNoKey,
    /// The peer has another key, or the message was changed on its way.
    Forged,
}

impl std::fmt::Display for SealError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wire(e) => e.fmt(f),
            Self::Late => f.write_str("the peer did not greet within 10 seconds"),
            Self::KeyMissing => f.write_str("a key is asked for, and none was given"),
            Self::PeerHasNoKey => f.write_str("a key was given, and the peer has none"),
            Self::Forged => f.write_str("the peer has another key, or messages were changed"),
        }
    }
}

impl std::error::Error for SealError {}

impl From<WireError> for SealError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// Keys of a connection, one for each direction, and how many messages went there.
struct Direction {
    key: hmac::Key,
    count: Cell<u64>,
}

impl Direction {
    fn new(tag: &hmac::Tag) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, tag.as_ref()), count: Cell::new(0) }
    }

    /// What the code of the next message covers: its number, then its text.
    fn covered(&self, text: &str) -> Vec<u8> {
        let number = self.count.get();
        self.count.set(number + 1);
        [&number.to_le_bytes()[..], text.as_bytes()].concat()
    }
}

/// A connection on which both sides proved the key, or neither has one.
pub struct Channel {
    stream: Rc<Stream>,
    /// To the peer, and from it.
    directions: Option<(Direction, Direction)>,
}

impl Channel {
    /// The side of the machine under test.
    pub async fn connect(stream: Rc<Stream>, key: Option<&Key>) -> Result<Self, SealError> {
        let nonce = key.map(|_| nonce()).transpose().map_err(WireError::Io)?;
        let greeting = Greeting { nonce, proof: None };
        send(&stream, &greeting, GREETING_MAX_BYTES).await?;
        let answer = greeted(&stream).await?;
        let (key, mine, theirs) = match (key, greeting.nonce, answer.nonce) {
            (None, _, None) => return Ok(Self { stream, directions: None }),
            (None, _, Some(_)) => return Err(SealError::KeyMissing),
            (Some(key), Some(mine), Some(theirs)) => (key, mine, theirs),
            (Some(_), _, _) => return Err(SealError::PeerHasNoKey),
        };
        let proof = answer.proof.as_deref().and_then(from_hex).ok_or(SealError::Forged)?;
        let wanted = format!("proof {mine} {theirs}");
        hmac::verify(&key.0, wanted.as_bytes(), &proof).map_err(|_| SealError::Forged)?;
        let to = Direction::new(&key.derive("to the witness", &mine, &theirs));
        let from = Direction::new(&key.derive("from the witness", &mine, &theirs));
        Ok(Self { stream, directions: Some((to, from)) })
    }

    /// The side of the witness.
    pub async fn accept(stream: Rc<Stream>, key: Option<&Key>) -> Result<Self, SealError> {
        let theirs = greeted(&stream).await?.nonce;
        let mine = key.map(|_| nonce()).transpose().map_err(WireError::Io)?;
        let both = key.zip(theirs.as_deref().zip(mine.as_deref()));
        let proof = both.map(|(key, (theirs, mine))| key.derive("proof", theirs, mine));
        let directions = both.map(|(key, (theirs, mine))| {
            let to = Direction::new(&key.derive("from the witness", theirs, mine));
            let from = Direction::new(&key.derive("to the witness", theirs, mine));
            (to, from)
        });
        let proof = proof.map(|tag| to_hex(tag.as_ref()));
        send(&stream, &Greeting { nonce: mine, proof }, GREETING_MAX_BYTES).await?;
        match (key, theirs) {
            (Some(_), None) => Err(SealError::KeyMissing),
            (None, Some(_)) => Err(SealError::PeerHasNoKey),
            _ => Ok(Self { stream, directions }),
        }
    }

    /// Sends a message. Messages of several tasks must not overlap.
    pub async fn send<T: Serialize>(&self, message: &T, max: usize) -> Result<(), SealError> {
        let Some((to, _)) = &self.directions else {
            return Ok(send(&self.stream, message, max).await?);
        };
        let text = serde_json::to_string(message).map_err(WireError::Json)?;
        let code = to_hex(hmac::sign(&to.key, &to.covered(&text)).as_ref());
        Ok(send(&self.stream, &Sealed { text, code }, max).await?)
    }

    /// Receives a message.
    pub async fn receive<T: DeserializeOwned>(&self, max: usize) -> Result<T, SealError> {
        let Some((_, from)) = &self.directions else {
            return Ok(receive(&self.stream, max).await?);
        };
        let sealed = receive::<Sealed>(&self.stream, max).await?;
        let code = from_hex(&sealed.code).ok_or(SealError::Forged)?;
        let covered = from.covered(&sealed.text);
        hmac::verify(&from.key, &covered, &code).map_err(|_| SealError::Forged)?;
        Ok(serde_json::from_str(&sealed.text).map_err(WireError::Json)?)
    }

    /// The stream.
    pub fn stream(&self) -> &Rc<Stream> {
        &self.stream
    }
}

impl SealError {
    /// What a command says of it. `witness` is its address.
    pub fn failure(&self, witness: &str) -> Failure {
        let message = format!("the witness at {witness}: {self}");
        match self {
            Self::Wire(_) | Self::Late => Failure::new(ErrorCode::ServerUnreachable, message),
            Self::KeyMissing | Self::PeerHasNoKey | Self::Forged => {
                Failure::new(ErrorCode::PermissionDenied, message).with_hint(KEY_HINT)
            }
        }
    }
}

async fn greeted(stream: &Stream) -> Result<Greeting, SealError> {
    let greeting = receive::<Greeting>(stream, GREETING_MAX_BYTES);
    let greeting = rt::timeout(GREETING_TIME, greeting).await.map_err(|_| SealError::Late)??;
    // Both random numbers are covered as text: only one text may stand for a number.
    let is_number = |nonce: &String| from_hex(nonce).is_some_and(|n| n.len() == NONCE_BYTES);
    let is_sound = greeting.nonce.as_ref().is_none_or(is_number);
    if is_sound { Ok(greeting) } else { Err(SealError::Forged) }
}

fn nonce() -> std::io::Result<String> {
    let mut bytes = [0; NONCE_BYTES];
    rt::sys::fill_random(&mut bytes)?;
    Ok(to_hex(&bytes))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: char| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let digits: Vec<u8> = text.chars().map(digit).collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    pairs.remainder().is_empty().then(|| pairs.map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests;
