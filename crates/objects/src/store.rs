//! Object stores: what a device asks of one.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

use forebay_device::IoBytes;

/// What a request returns while it runs.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + 'a>>;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// There is no such object.
    Missing,
    /// There is such an object already.
    Exists,
    /// The store had this object and has it no more.
    Lost {
        /// Its name.
        object: String,
    },
    /// Another process of this machine has opened it.
    InUse,
    /// The store did not answer, or asks to be left alone for a while. The request may have its
    /// effect all the same, also later.
    Unavailable {
        /// The store's answer, or that of the network.
        text: String,
    },
    /// No connection to the store could be made, which was certain at once: the connection was
    /// refused, its host is unknown, or TLS failed. Otherwise as [`StoreError::Unavailable`].
    Unreachable {
        /// What the network says.
        text: String,
    },
    /// The store refuses: what is asked again is refused again.
    Refused {
        /// The store's answer.
        text: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("there is no such object"),
            Self::Exists => f.write_str("there is such an object already"),
            Self::Lost { object } => write!(f, "the store has lost the object '{object}'"),
            Self::InUse => f.write_str("another process of this machine has opened it"),
            Self::Unavailable { text } | Self::Unreachable { text } | Self::Refused { text } => {
                f.write_str(text)
            }
        }
    }
}

impl std::error::Error for StoreError {}

/// An object store, as a device sees it: names below the device's prefix.
///
/// A get that begins after a put has succeeded finds the object. A listing may lag behind.
pub trait Store {
    /// Its name for messages, without credentials.
    fn name(&self) -> &str;

    /// Stores an object whole. With `only_new` it fails with [`StoreError::Exists`] when there is
    /// one of that name: of several puts one succeeds at most.
    fn put<'a>(&'a self, name: &'a str, parts: Vec<IoBytes>, only_new: bool) -> Answer<'a, ()>;

    /// An object, or `range` of its bytes.
    fn get<'a>(&'a self, name: &'a str, range: Option<Range<u64>>) -> Answer<'a, Vec<IoBytes>>;

    /// Deletes objects. Those that are not there do not matter.
    fn delete(&self, names: Vec<String>) -> Answer<'_, ()>;

    /// Names that begin with `prefix`, in order.
    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>>;
}
