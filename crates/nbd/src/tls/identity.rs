//! The one name that a certificate stands for.

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Longest name that is taken, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// The name of the certificate in `der`, whose signature somebody else has verified: the
/// subject's common name, or else the first DNS name, e-mail address or URI of its alternative
/// names. `Ok(None)` when it has none of them.
///
/// # Errors
/// Words on why it cannot be told for sure who that is: two common names, characters that do not
/// show, a name of more than 255 bytes. Such a certificate must not pass for another one.
pub(crate) fn identity_of(der: &[u8]) -> Result<Option<String>, String> {
    let (rest, certificate) =
        X509Certificate::from_der(der).map_err(|e| format!("the certificate is malformed: {e}"))?;
    if !rest.is_empty() {
        return Err("bytes follow the certificate".into());
    }
    let mut common = certificate.subject().iter_common_name();
    if let Some(name) = common.next() {
        if common.next().is_some() {
            return Err("the certificate's subject has two common names".into());
        }
        let name = name.as_str().map_err(|_| "the common name is no text".to_owned())?;
        return checked(name).map(Some);
    }
    let alternatives = certificate
        .subject_alternative_name()
        .map_err(|e| format!("the alternative names are malformed: {e}"))?;
    let names = alternatives.iter().flat_map(|extension| &extension.value.general_names);
    let first = names.into_iter().find_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
            Some(*name)
        }
        _ => None,
    });
    first.map(checked).transpose()
}

fn checked(name: &str) -> Result<String, String> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(format!("the certificate's name has {} bytes, 1 to 255 may be", name.len()));
    }
    if name.chars().any(char::is_control) {
        return Err("the certificate's name has control characters".into());
    }
    Ok(name.to_owned())
}
