//! Bytes of a source: unpacked, counted, and looked at before they are read.

use std::io::{self, BufRead, BufReader, Read};

use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;

use crate::error::TraceError;

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// What can be read byte by byte: a file, standard input, a pipe.
pub type Bytes = Box<dyn Read>;

/// A buffered source that counts what was taken from it.
pub(crate) struct Input {
    reader: BufReader<Bytes>,
    offset: u64,
}

impl Input {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { reader: BufReader::with_capacity(BUFFER_BYTES, bytes), offset: 0 }
    }

    /// Bytes taken so far.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Fills `bytes`. `false` when the source had ended before the first of them.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => filled += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Leaves out `len_bytes`.
    pub(crate) fn skip(&mut self, len_bytes: u64) -> io::Result<()> {
        let skipped = io::copy(&mut self.by_ref().take(len_bytes), &mut io::sink())?;
        if skipped == len_bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(bytes)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, len: usize) {
        self.offset += len as u64;
        self.reader.consume(len);
    }
}

/// A source whose beginning has been read and is given again.
pub(crate) struct Peeked {
    head: Vec<u8>,
    given: usize,
    /// The error that ended the look, given after the head.
    error: Option<io::Error>,
    rest: Bytes,
    has_ended: bool,
}

impl Peeked {
    pub(crate) fn new(rest: Bytes) -> Self {
        Self { head: Vec::new(), given: 0, error: None, rest, has_ended: false }
    }

    /// What has been read so far.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Whether nothing comes behind the head.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended || self.error.is_some()
    }

    /// Reads once more, without waiting for more than the source has.
    pub(crate) fn read_on(&mut self) {
        if self.has_ended() {
            return;
        }
        let mut part = [0u8; 16 << 10];
        match self.rest.read(&mut part) {
            Ok(0) => self.has_ended = true,
            Ok(read) => self.head.extend_from_slice(&part[..read]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => self.error = Some(e),
        }
    }

    /// The error, when not one byte could be read before it.
    pub(crate) fn error_at_start(&mut self) -> Option<io::Error> {
        if self.head.is_empty() { self.error.take() } else { None }
    }
}

impl Read for Peeked {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = &self.head[self.given..];
        if !left.is_empty() {
            let len = left.len().min(bytes.len());
            bytes[..len].copy_from_slice(&left[..len]);
            self.given += len;
            return Ok(len);
        }
        match self.error.take() {
            Some(error) => {
                self.has_ended = true;
                Err(error)
            }
            None if self.has_ended => Ok(0),
            None => self.rest.read(bytes),
        }
    }
}

/// Unpacks gzip and xz; other packers are refused by name.
pub(crate) fn unpack(bytes: Bytes) -> Result<Peeked, TraceError> {
    const MAGIC_BYTES: usize = 6;
    let mut raw = Peeked::new(bytes);
    while raw.head().len() < MAGIC_BYTES && !raw.has_ended() {
        raw.read_on();
    }
    if let Some(error) = raw.error_at_start() {
        return Err(TraceError::Io(error));
    }
    let unpacked: Bytes = match raw.head() {
        [] => return Err(TraceError::Empty),
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(raw)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Box::new(XzReader::new(raw, true)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => return Err(TraceError::Compression { program: "zstd" }),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => {
            return Err(TraceError::Compression { program: "bzip2" });
        }
        [0x04, 0x22, 0x4d, 0x18, ..] => return Err(TraceError::Compression { program: "lz4" }),
        [b'P', b'K', 3, 4, ..] => return Err(TraceError::Compression { program: "zip" }),
        _ => return Ok(raw),
    };
    Ok(Peeked::new(unpacked))
}
