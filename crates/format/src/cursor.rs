//! Reading and writing little-endian fields with every length checked.

use crate::{FormatError, FormatFlaw};

/// Takes fields off the front of a slice.
pub struct Decoder<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Reads `bytes` as a `what` (the word that errors use).
    #[must_use]
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let Some((head, rest)) = self.rest.split_at_checked(len) else {
            let left_bytes = self.rest.len();
            return Err(self.error(FormatFlaw::Truncated { expected_bytes: len, left_bytes }));
        };
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Five bytes.
    pub fn u40(&mut self) -> Result<u64, FormatError> {
        let mut wide = [0; 8];
        wide[..5].copy_from_slice(self.bytes(5)?);
        Ok(u64::from_le_bytes(wide))
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A string with a two-byte length.
    pub fn string(&mut self) -> Result<String, FormatError> {
        let len = self.u16()?;
        let bytes = self.bytes(usize::from(len))?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.error(FormatFlaw::NotUtf8))
    }

    /// The bytes that have not been read.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// An error in this structure.
    #[must_use]
    pub fn error(&self, flaw: impl Into<FormatFlaw>) -> FormatError {
        FormatError::new(self.what, flaw)
    }

    /// An error unless the version is the one that this program reads.
    pub(crate) fn check_version(&self, found: u32, expected: u32) -> Result<(), FormatError> {
        if found == expected {
            return Ok(());
        }
        Err(self.error(FormatFlaw::Version { expected, found }))
    }

    /// An error unless the checksum in the bytes is that of the bytes.
    pub(crate) fn check_sum(&self, stored: u64, computed: u64) -> Result<(), FormatError> {
        if stored == computed {
            return Ok(());
        }
        Err(self.error(FormatFlaw::Checksum { stored, computed }))
    }
}

/// Appends fields to a vector.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// An empty encoder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty encoder with memory for `len` bytes.
    #[must_use]
    pub fn with_capacity(len: usize) -> Self {
        Self { bytes: Vec::with_capacity(len) }
    }

    /// Raw bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// One byte.
    pub fn u8(&mut self, v: u8) -> &mut Self {
        self.bytes(&[v])
    }

    /// Two bytes.
    pub fn u16(&mut self, v: u16) -> &mut Self {
        self.bytes(&v.to_le_bytes())
    }

    /// Four bytes.
    pub fn u32(&mut self, v: u32) -> &mut Self {
        self.bytes(&v.to_le_bytes())
    }

    /// Five bytes; higher ones must be zero.
    pub fn u40(&mut self, v: u64) -> &mut Self {
        assert!(v >> 40 == 0, "value wider than 40 bits");
        self.bytes(&v.to_le_bytes()[..5])
    }

    /// Eight bytes.
    pub fn u64(&mut self, v: u64) -> &mut Self {
        self.bytes(&v.to_le_bytes())
    }

    /// A string with a two-byte length; longer ones are a bug.
    pub fn string(&mut self, v: &str) -> &mut Self {
        self.u16(u16::try_from(v.len()).expect("strings of the format are short"));
        self.bytes(v.as_bytes())
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
