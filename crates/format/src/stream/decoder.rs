//! From the bytes of a stream, as they arrive, to its records.

use forebay_units::BLOCK_BYTES;

use super::{
    BEGIN, COMPRESSED, DATA, END, HOLE, MAGIC, MAX_PAYLOAD_BYTES, PREAMBLE_BYTES, RECORD_BYTES,
    REPEAT, REPEATED, StreamError, StreamFlaw, StreamHeader, Totals, UNITS, VERSION,
    VERSION_AS_STORED, preamble_sum, record_sum, units_of,
};
use crate::Decoder;

/// A record of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// The first one.
    Begin(StreamHeader),
    /// What a range holds.
    Data {
        /// Where it begins in the volume.
        offset_bytes: u64,
        /// The data: whole blocks.
        data: &'a [u8],
    },
    /// What a range holds, compressed.
    Units {
        /// Where it begins in the volume.
        offset_bytes: u64,
        /// Its units, which are of its length: [`units_of`].
        units: &'a [u8],
    },
    /// A range that holds what the volume has elsewhere, before it.
    Repeat {
        /// Where it begins in the volume.
        offset_bytes: u64,
        /// Its length.
        len_bytes: u64,
        /// Where the volume has the same.
        from_bytes: u64,
    },
    /// A range without data.
    Hole {
        /// Where it begins in the volume.
        offset_bytes: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// The last one.
    End(Totals),
}

/// The fields of a record before its payload.
struct Head {
    kind: u32,
    payload_len: u32,
    number: u64,
    offset_bytes: u64,
    len_bytes: u64,
    sum: u64,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut input = Decoder::new("record", bytes);
        Some(Self {
            kind: input.u32().ok()?,
            payload_len: input.u32().ok()?,
            number: input.u64().ok()?,
            offset_bytes: input.u64().ok()?,
            len_bytes: input.u64().ok()?,
            sum: input.u64().ok()?,
        })
    }
}

/// Reads a stream. Holds at most one record and what was pushed behind it.
#[derive(Default)]
pub struct StreamDecoder {
    /// Bytes that have arrived; those before `taken` are read.
    bytes: Vec<u8>,
    taken: usize,
    /// Bytes of the stream before `bytes`.
    before_bytes: u64,
    /// Checksum of the last record; `None` before the preamble is read.
    sum: Option<u64>,
    header: Option<StreamHeader>,
    /// Features of the stream, as flags.
    features: u32,
    is_as_stored: bool,
    /// Where the last record begins in the stream.
    last_bytes: u64,
    /// Where the next range may begin.
    next_bytes: u64,
    totals: Totals,
    is_over: bool,
}

impl StreamDecoder {
    /// A decoder at the beginning of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.before_bytes += self.taken as u64;
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Totals of the records so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    fn error(&self, flaw: StreamFlaw) -> StreamError {
        let offset_bytes = self.before_bytes + self.taken as u64;
        StreamError { record: self.totals.records, offset_bytes, flaw }
    }

    /// An error of the last record, which cannot be what it says.
    #[must_use]
    pub fn refuse(&self, flaw: StreamFlaw) -> StreamError {
        let record = self.totals.records.saturating_sub(1);
        StreamError { record, offset_bytes: self.last_bytes, flaw }
    }

    /// At the end of the input: an error unless the stream is whole.
    pub fn finish(&self) -> Result<(), StreamError> {
        match self.is_over {
            true if self.taken == self.bytes.len() => Ok(()),
            true => Err(self.error(StreamFlaw::Behind)),
            false => Err(self.error(StreamFlaw::Truncated)),
        }
    }

    /// The next record; `None` when more bytes are needed, and after the last one. After an error
    /// the stream cannot be read on.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, StreamError> {
        let left = self.bytes.len() - self.taken;
        if self.is_over {
            return if left > 0 { Err(self.error(StreamFlaw::Behind)) } else { Ok(None) };
        }
        let Some(before) = self.sum.map_or_else(|| self.read_preamble(), |sum| Ok(Some(sum)))?
        else {
            return Ok(None);
        };
        let from = self.taken;
        let Some(head) = self.bytes.get(from..from + RECORD_BYTES).and_then(Head::read) else {
            return Ok(None);
        };
        self.check_head(&head)?;
        let end = from + RECORD_BYTES + head.payload_len as usize;
        if self.bytes.len() < end {
            return Ok(None);
        }
        let (fields, payload) = self.bytes[from..end].split_at(RECORD_BYTES);
        if record_sum(before, &fields[..RECORD_BYTES - 8], payload) != head.sum {
            return Err(self.error(StreamFlaw::Checksum));
        }
        if head.number != self.totals.records {
            return Err(self.error(StreamFlaw::Number { found: head.number }));
        }
        self.sum = Some(head.sum);
        self.check_place(&head)?;
        self.last_bytes = self.before_bytes + from as u64;
        match head.kind {
            BEGIN => self.take_begin(end),
            END => self.take_end(end),
            _ => self.take_range(&head, end),
        }
    }

    /// Reads what is before the first record, and gives its checksum; `None` when more bytes are
    /// needed.
    fn read_preamble(&mut self) -> Result<Option<u64>, StreamError> {
        let seen = self.bytes.len().min(MAGIC.len());
        if self.bytes[..seen] != MAGIC[..seen] {
            return Err(self.error(StreamFlaw::NoMagic));
        }
        let Some(preamble) = self.bytes.get(..PREAMBLE_BYTES) else { return Ok(None) };
        let sum = preamble_sum(preamble);
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&preamble[at..at + 4]);
            u32::from_le_bytes(word)
        };
        (self.is_as_stored, self.features) = match word(8) {
            VERSION => (false, 0),
            VERSION_AS_STORED => (true, word(12)),
            found => return Err(self.error(StreamFlaw::Version { found })),
        };
        let unknown = self.features & !(COMPRESSED | REPEATED);
        if unknown != 0 {
            return Err(self.error(StreamFlaw::Features { unknown }));
        }
        self.taken = PREAMBLE_BYTES;
        self.sum = Some(sum);
        Ok(Some(sum))
    }

    /// Refuses a length before memory is taken for it.
    fn check_head(&self, head: &Head) -> Result<(), StreamError> {
        let len_bytes = head.payload_len;
        let is_right = match head.kind {
            BEGIN => len_bytes > 0,
            DATA => len_bytes > 0 && u64::from(len_bytes) == head.len_bytes,
            HOLE => len_bytes == 0 && head.len_bytes > 0,
            END => len_bytes == 24,
            UNITS if self.features & COMPRESSED != 0 => len_bytes > 0 && head.len_bytes > 0,
            REPEAT if self.features & REPEATED != 0 => len_bytes == 8 && head.len_bytes > 0,
            kind => return Err(self.error(StreamFlaw::UnknownKind { kind })),
        };
        if is_right && len_bytes as usize <= MAX_PAYLOAD_BYTES {
            return Ok(());
        }
        Err(self.error(StreamFlaw::Payload { len_bytes }))
    }

    /// Refuses a record that is not where one of its kind may be.
    fn check_place(&self, head: &Head) -> Result<(), StreamError> {
        let Some(header) = &self.header else {
            return match head.kind {
                BEGIN => Ok(()),
                kind => Err(self.error(StreamFlaw::OutOfPlace { kind })),
            };
        };
        let Head { kind, offset_bytes, len_bytes, .. } = *head;
        match kind {
            BEGIN => return Err(self.error(StreamFlaw::OutOfPlace { kind })),
            END => return Ok(()),
            _ => {}
        }
        let end = offset_bytes.checked_add(len_bytes).filter(|end| *end <= header.size_bytes);
        let follows = match header.is_incremental() {
            true => offset_bytes >= self.next_bytes,
            false => offset_bytes == self.next_bytes,
        };
        let blocks = offset_bytes % BLOCK_BYTES == 0 && len_bytes % BLOCK_BYTES == 0;
        if end.is_some() && follows && blocks {
            return Ok(());
        }
        Err(self.error(StreamFlaw::Range { offset_bytes, len_bytes }))
    }

    fn take_begin(&mut self, end: usize) -> Result<Option<Record<'_>>, StreamError> {
        let payload = &self.bytes[self.taken + RECORD_BYTES..end];
        let header = StreamHeader::decode(payload, self.is_as_stored)
            .map_err(|error| self.error(StreamFlaw::Format(error)))?;
        if !header.is_sound() {
            return Err(self.error(StreamFlaw::Header));
        }
        self.next_bytes = header.start_bytes;
        self.header = Some(header.clone());
        self.totals.records += 1;
        self.taken = end;
        Ok(Some(Record::Begin(header)))
    }

    fn take_range(&mut self, head: &Head, end: usize) -> Result<Option<Record<'_>>, StreamError> {
        let Head { kind, offset_bytes, len_bytes, .. } = *head;
        let from = self.taken + RECORD_BYTES;
        let from_bytes = match kind {
            REPEAT => self.repeated(head, &self.bytes[from..end])?,
            _ => 0,
        };
        if kind == UNITS && !is_of_length(&self.bytes[from..end], len_bytes) {
            return Err(self.error(StreamFlaw::Units));
        }
        self.next_bytes = offset_bytes + len_bytes;
        self.totals.records += 1;
        self.taken = end;
        if kind == HOLE {
            self.totals.hole_bytes += len_bytes;
            return Ok(Some(Record::Hole { offset_bytes, len_bytes }));
        }
        self.totals.data_bytes += len_bytes;
        let payload = &self.bytes[from..end];
        Ok(Some(match kind {
            UNITS => Record::Units { offset_bytes, units: payload },
            REPEAT => Record::Repeat { offset_bytes, len_bytes, from_bytes },
            _ => Record::Data { offset_bytes, data: payload },
        }))
    }

    /// Where a repeated range is, which lies before it.
    fn repeated(&self, head: &Head, payload: &[u8]) -> Result<u64, StreamError> {
        let mut input = Decoder::new("repeat record", payload);
        let from = input.u64().map_err(|error| self.error(StreamFlaw::Format(error)))?;
        let Head { offset_bytes, len_bytes, .. } = *head;
        let is_before = from.checked_add(len_bytes).is_some_and(|end| end <= offset_bytes);
        if is_before && from % BLOCK_BYTES == 0 && len_bytes <= MAX_PAYLOAD_BYTES as u64 {
            return Ok(from);
        }
        Err(self.error(StreamFlaw::Range { offset_bytes: from, len_bytes }))
    }

    fn take_end(&mut self, end: usize) -> Result<Option<Record<'_>>, StreamError> {
        let mut input = Decoder::new("end record", &self.bytes[self.taken + RECORD_BYTES..end]);
        let mut next = || input.u64().map_err(|error| self.error(StreamFlaw::Format(error)));
        let said = Totals { records: next()?, data_bytes: next()?, hole_bytes: next()? };
        let counted = Totals { records: self.totals.records + 1, ..self.totals };
        let header = self.header.as_ref();
        let is_whole = header
            .is_none_or(|header| header.is_incremental() || self.next_bytes == header.size_bytes);
        if said != counted || !is_whole {
            return Err(self.error(StreamFlaw::Totals { counted }));
        }
        self.totals = counted;
        self.taken = end;
        self.is_over = true;
        Ok(Some(Record::End(counted)))
    }
}

/// Whether compressed units are of a range of `len_bytes`, no longer than a record of data.
fn is_of_length(units: &[u8], len_bytes: u64) -> bool {
    let Ok(units) = units_of(units) else { return false };
    let blocks: u64 = units.iter().map(|unit| u64::from(unit.blocks)).sum();
    blocks * BLOCK_BYTES == len_bytes && len_bytes <= MAX_PAYLOAD_BYTES as u64
}
