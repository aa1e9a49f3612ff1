//! Frames of the intent log.
