//! Records of snapshots in the map journal. The last record of a snapshot counts.

use forebay_units::VolumeId;

use crate::{Decoder, Encoder, FormatError, FormatFlaw};

const WHAT: &str = "snapshot record";
/// Longest name of a snapshot or of a hold, in bytes.
pub const MAX_NAME_BYTES: usize = u8::MAX as usize;
/// Most holds of a snapshot.
pub const MAX_HOLDS: usize = u8::MAX as usize;

/// A snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id, from the same numbers as those of volumes. Its part of the map has this id.
    pub id: VolumeId,
    /// The volume that has it.
    pub volume: VolumeId,
    /// The volume that it was taken of: another one after a promotion. A part of its identity.
    pub taken_of: VolumeId,
    /// Name without the volume's.
    pub name: String,
    /// The root with which it was taken: later ones have higher numbers.
    pub commit: u64,
    /// Seconds since 1970 when it was taken.
    pub created_at: u64,
    /// Size of the volume at that time.
    pub size_bytes: u64,
    /// Blocks that held data at that time.
    pub referenced_blocks: u64,
    /// Tags that keep it from being destroyed.
    pub holds: Vec<String>,
    /// It is being destroyed: it has no name any more, and its blocks are being let go.
    pub is_dying: bool,
}

impl Snapshot {
    fn is_promoted(&self) -> bool {
        self.taken_of != self.volume
    }
}

/// What the journal says of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotRecord {
    /// The snapshot is this.
    Present(Snapshot),
    /// There is no snapshot with this id any more.
    Gone(VolumeId),
}

const GONE: u8 = 0;
const PRESENT: u8 = 1;
const DYING: u8 = 2;
/// Added to these when another volume has it than the one that it was taken of.
const PROMOTED: u8 = 2;

impl SnapshotRecord {
    /// Appends the record. Panics when a name is too long or there are too many holds (a bug).
    pub fn encode(&self, out: &mut Encoder) {
        let now = match self {
            Self::Gone(id) => {
                out.u8(GONE).u32(id.0);
                return;
            }
            Self::Present(now) => now,
        };
        let promoted = if now.is_promoted() { PROMOTED } else { 0 };
        out.u8(promoted + if now.is_dying { DYING } else { PRESENT });
        out.u32(now.id.0).u32(now.volume.0);
        if now.is_promoted() {
            out.u32(now.taken_of.0);
        }
        out.u64(now.commit).u64(now.created_at);
        out.u64(now.size_bytes).u64(now.referenced_blocks);
        put_text(out, &now.name);
        out.u8(u8::try_from(now.holds.len()).expect("at most MAX_HOLDS"));
        now.holds.iter().for_each(|tag| put_text(out, tag));
    }

    /// The snapshot's id.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        match self {
            Self::Present(now) => now.id,
            Self::Gone(id) => *id,
        }
    }

    /// Bytes of the encoded record.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::Gone(_) => 5,
            Self::Present(now) => {
                let holds: usize = now.holds.iter().map(|tag| 1 + tag.len()).sum();
                let taken_of = if now.is_promoted() { 4 } else { 0 };
                41 + taken_of + 1 + now.name.len() + 1 + holds
            }
        }
    }

    /// Reads all records of a payload.
    pub fn decode_all(payload: &[u8]) -> Result<Vec<Self>, FormatError> {
        let mut input = Decoder::new(WHAT, payload);
        let mut records = Vec::new();
        while !input.rest().is_empty() {
            let (kind, id) = (input.u8()?, VolumeId(input.u32()?));
            if kind == GONE {
                records.push(Self::Gone(id));
                continue;
            }
            let (is_promoted, is_dying) = match kind {
                PRESENT | DYING => (false, kind == DYING),
                _ if kind == PROMOTED + PRESENT => (true, false),
                _ if kind == PROMOTED + DYING => (true, true),
                _ => return Err(input.error(FormatFlaw::UnknownKind { kind: kind.into() })),
            };
            let volume = VolumeId(input.u32()?);
            let taken_of = if is_promoted { VolumeId(input.u32()?) } else { volume };
            let (commit, created_at) = (input.u64()?, input.u64()?);
            let (size_bytes, referenced_blocks) = (input.u64()?, input.u64()?);
            let name = take_text(&mut input)?;
            let count = input.u8()?;
            let holds = (0..count).map(|_| take_text(&mut input)).collect::<Result<_, _>>()?;
            records.push(Self::Present(Snapshot {
                id,
                volume,
                taken_of,
                name,
                commit,
                created_at,
                size_bytes,
                referenced_blocks,
                holds,
                is_dying,
            }));
        }
        Ok(records)
    }
}

fn put_text(out: &mut Encoder, text: &str) {
    out.u8(u8::try_from(text.len()).expect("at most MAX_NAME_BYTES")).bytes(text.as_bytes());
}

fn take_text(input: &mut Decoder<'_>) -> Result<String, FormatError> {
    let len = usize::from(input.u8()?);
    let bytes = input.bytes(len)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| input.error(FormatFlaw::NotUtf8))
}
