//! The error of another layer as the reason of a device's error.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// An error of a layer whose types this crate does not know. It keeps its own type.
#[derive(Clone)]
pub struct Cause(Arc<dyn Comparable>);

/// An error that can be compared with any other.
trait Comparable: Error + Send + Sync + 'static {
    fn is_equal(&self, other: &(dyn Error + 'static)) -> bool;
    fn as_error(&self) -> &(dyn Error + 'static);
}

impl<E: Error + PartialEq + Send + Sync + 'static> Comparable for E {
    fn is_equal(&self, other: &(dyn Error + 'static)) -> bool {
        other.downcast_ref::<E>() == Some(self)
    }

    fn as_error(&self) -> &(dyn Error + 'static) {
        self
    }
}

impl Cause {
    /// Keeps `error`.
    #[must_use]
    pub fn new(error: impl Error + Eq + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }

    /// The error.
    #[must_use]
    pub fn error(&self) -> &(dyn Error + 'static) {
        self.0.as_error()
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_equal(other.error())
    }
}

impl Eq for Cause {}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
