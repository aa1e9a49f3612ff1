//! Log devices on other hosts: `nbd://HOST/EXPORT` is a side of a log, over this program's client.
//!
//! What enters: words of the command line, names of devices. What leaves: checked names, opened
//! devices. What always holds: a device whose writes would not be durable is refused; a connection
//! that is lost is not made again under the pool, which looks at the labels first.

use std::fmt;
use std::rc::Rc;

use forebay_device::{BlockDevice, Cause, Device, DeviceError, ErrorKind, Operation};
use forebay_nbd::uri::{Address, Uri};
use forebay_nbd::{Client, ClientError};
use forebay_pool::spec::PoolSpec;
use forebay_rt as rt;
use forebay_units::{Nanos, format_bytes};

use crate::devices::DEVICE_MIN_BYTES;
use crate::failure::{ErrorCode, Failure};
use crate::terminal::with_waiting_line;

/// How long the other host may take to answer when it is connected to.
const CONNECT_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Beginnings of the names.
const SCHEMES: [&str; 4] = ["nbd://", "nbds://", "nbd+unix://", "nbds+unix://"];

/// Whether the word names a device on another host.
#[must_use]
pub fn is_name(word: &str) -> bool {
    SCHEMES.iter().any(|scheme| word.starts_with(scheme))
}

/// Fails when such a name is not in a log.
pub fn check_places(spec: &PoolSpec) -> Result<(), Failure> {
    let others = spec.groups.iter().flat_map(|group| &group.devices).chain(&spec.caches);
    match others.chain(&spec.spares).find(|word| is_name(word)) {
        Some(word) => {
            let message = format!("{word}: a device on another host can be a log device only");
            Err(Failure::usage(message).with_hint("write it behind 'log'"))
        }
        None => Ok(()),
    }
}

/// The name as a pool keeps it. Fails when the export cannot be reached or cannot hold a log.
pub async fn resolve(word: &str) -> Result<String, Failure> {
    let wrong = |what: &str| {
        Err(Failure::usage(format!("{word}: {what}"))
            .with_hint("for example nbd://10.0.0.2/log0, which 'forebay log-target' serves there"))
    };
    let uri = Uri::parse(word).map_err(Failure::usage)?;
    let folder = uri.tls.as_ref().and_then(|tls| tls.certificates.as_ref());
    if folder.is_some_and(|folder| !folder.is_absolute()) {
        return wrong("the pool keeps this name: give the folder's absolute path");
    }
    if matches!(&uri.address, Address::Unix(path) if !path.is_absolute()) {
        return wrong("the pool keeps this name: give the socket's absolute path");
    }
    let what = format!("connecting to {word}");
    let client = with_waiting_line(&what, false, connect(word)).await.map_err(|e| {
        Failure::new(ErrorCode::DeviceUnusable, e)
            .with_hint("'forebay log-target' serves a device to pools of other hosts")
    })?;
    let geometry = client.geometry();
    let unusable =
        |what: String| Err(Failure::new(ErrorCode::DeviceUnusable, format!("{word}: {what}")));
    if geometry.read_only {
        return unusable("the export is read-only".to_owned());
    }
    if !geometry.volatile_cache {
        return unusable(
            "the server does not flush, so no write is known to be durable".to_owned(),
        );
    }
    if geometry.block_bytes > 4096 {
        return unusable(format!("its blocks of {} bytes are too large", geometry.block_bytes));
    }
    if geometry.size_bytes < DEVICE_MIN_BYTES {
        let size = format_bytes(geometry.size_bytes);
        return unusable(format!("it has {size}; a device needs 64M at least"));
    }
    Ok(word.to_owned())
}

/// Whether the other host answers.
pub async fn answers(name: &str) -> bool {
    connect(name).await.is_ok()
}

/// Opens the export `name`.
pub async fn open(name: &str) -> Result<Device, DeviceError> {
    Ok(Rc::new(connect(name).await?))
}

async fn connect(name: &str) -> Result<Client, DeviceError> {
    let failed = |kind| DeviceError::new(name, Operation::Open, 0, 0, kind);
    match rt::timeout(CONNECT_TIMEOUT, Box::pin(Client::connect(name))).await {
        Ok(Ok(client)) => Ok(client),
        Ok(Err(ClientError::Connect { error, .. })) => {
            Err(DeviceError::os(name, Operation::Open, 0, 0, &error))
        }
        Ok(Err(other)) => Err(failed(ErrorKind::Layer(Cause::new(NotOpened(other.to_string()))))),
        Err(rt::Elapsed) => {
            let after_secs = CONNECT_TIMEOUT.0 / 1_000_000_000;
            Err(failed(ErrorKind::TimedOut { after_secs }))
        }
    }
}

/// Why the other host does not open the export, in its words.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NotOpened(String);

impl fmt::Display for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotOpened {}

#[cfg(test)]
mod tests;
