//! Errors of a pool, for the operator.

use std::fmt;

use forebay_array::ArrayError;
use forebay_device::DeviceError;
use forebay_format::FormatError;
use forebay_intent_log::LogError;
use forebay_segment::SegmentError;

/// Something that could not be done: one line that says what, why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolError {
    /// The line.
    pub message: String,
}

impl PoolError {
    /// An error with this line.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PoolError {}

macro_rules! widen {
    ($($error:ty),*) => {
        $(impl From<$error> for PoolError {
            fn from(error: $error) -> Self {
                Self::new(error.to_string())
            }
        })*
    };
}
widen!(ArrayError, DeviceError, FormatError, LogError);

impl From<SegmentError> for PoolError {
    fn from(error: SegmentError) -> Self {
        DeviceError::from(error).into()
    }
}
