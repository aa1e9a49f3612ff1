//! Errors that widen: `From` for the errors that a variant wraps.

/// Implements `From` for variants of one field, and `std::error::Error`.
macro_rules! widens {
    ($to:ident: $($variant:ident($from:ty)),* $(,)?) => {
        $(impl From<$from> for $to {
            fn from(error: $from) -> Self {
                Self::$variant(error.into())
            }
        })*

        impl std::error::Error for $to {}
    };
}
pub(crate) use widens;
