//! What is read of certificates: the identity of a client (one name), and when one is valid.

use std::ops::RangeInclusive;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Bytes of an identity.
const MAX_NAME_BYTES: usize = 255;

/// Why a certificate gives no certain identity. It must not pass for another identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdentityError {
    /// The certificate is malformed.
    Malformed,
    /// Bytes follow the certificate.
    TrailingBytes,
    /// The subject has two common names.
    TwoCommonNames,
    /// The name is not text.
    NotText,
    /// The name is empty, or longer than 255 bytes.
    BadLength,
    /// The name has control characters.
    ControlCharacters,
}

/// The identity of the certificate in `der`, whose signature rustls has verified: the subject's
/// common name, or else the first DNS name, e-mail address or URI of its alternative names.
/// `Ok(None)` if it has none of them.
pub(crate) fn identity_of(der: &[u8]) -> Result<Option<String>, IdentityError> {
    let (rest, certificate) =
        X509Certificate::from_der(der).map_err(|_| IdentityError::Malformed)?;
    if !rest.is_empty() {
        return Err(IdentityError::TrailingBytes);
    }
    let mut common = certificate.subject().iter_common_name();
    if let Some(name) = common.next() {
        if common.next().is_some() {
            return Err(IdentityError::TwoCommonNames);
        }
        let name = name.as_str().map_err(|_| IdentityError::NotText)?;
        return checked(name).map(Some);
    }
    let alternatives =
        certificate.subject_alternative_name().map_err(|_| IdentityError::Malformed)?;
    let names = alternatives.iter().flat_map(|extension| &extension.value.general_names);
    let first = names.into_iter().find_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
            Some(*name)
        }
        _ => None,
    });
    first.map(checked).transpose()
}

/// The time at which the certificate in `der` is valid, in seconds since 1970; `None` if it is
/// malformed.
pub(crate) fn validity_of(der: &[u8]) -> Option<RangeInclusive<i64>> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let validity = certificate.validity();
    Some(validity.not_before.timestamp()..=validity.not_after.timestamp())
}

fn checked(name: &str) -> Result<String, IdentityError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(IdentityError::BadLength);
    }
    if name.chars().any(char::is_control) {
        return Err(IdentityError::ControlCharacters);
    }
    Ok(name.to_owned())
}
