//! Values of a configuration file.

use std::fmt;
use std::path::PathBuf;

use forebay_units::parse_bytes;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::args::{ListenAddress, listen_address};

/// `unix:PATH` or `tcp:HOST:PORT`.
pub(super) struct Address(pub ListenAddress);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let address = listen_address(&text)?;
        match &address {
            ListenAddress::Unix(path) if !path.is_absolute() => {
                Err(format!("expected unix: and an absolute path, not '{}'", path.display()))
            }
            _ => Ok(Self(address)),
        }
    }
}

/// A path from the root: a service has no folder of its own to begin at.
#[derive(Deserialize)]
#[serde(try_from = "PathBuf")]
pub(super) struct AbsolutePath(pub PathBuf);

impl TryFrom<PathBuf> for AbsolutePath {
    type Error = String;

    fn try_from(path: PathBuf) -> Result<Self, String> {
        match path.is_absolute() {
            true => Ok(Self(path)),
            false => Err(format!("expected an absolute path, not '{}'", path.display())),
        }
    }
}

/// A whole number, or a size as text.
pub(super) enum Quantity {
    /// 32.
    Number(u64),
    /// "32M", in bytes.
    Size(u64),
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(QuantityVisitor)
    }
}

struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or a size such as \"64M\"")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
        let unexpected = de::Unexpected::Signed(value);
        let number = u64::try_from(value).map_err(|_| E::invalid_value(unexpected, &self))?;
        Ok(Quantity::Number(number))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
        Ok(Quantity::Number(value))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
        let size = parse_bytes(text);
        size.map(Quantity::Size).map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}
