//! The codec against bytes of a real kernel, and `/sys` and `/proc` as files.

mod devices;
#[cfg(target_endian = "little")]
mod messages;
