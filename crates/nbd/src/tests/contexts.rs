//! Block status in several metadata contexts, and where the owner knows nothing of a range; replies
//! to clients that have not agreed to structured ones.

use forebay_rt::Runtime;

use super::*;
use crate::exports::{BitmapRun, Bitmaps, ExportEntry, ExportHandle, Exports, Peer};
use crate::handshake::Refusal;
use crate::message::StatusPayload;
use crate::tests::handshake::{go, meta, option_bytes};
use crate::wire::{
    BASE_ALLOCATION, CHUNK_DONE, CHUNK_HEADER_BYTES, CHUNK_MAGIC, ChunkHeader, DIRTY, Request,
    SIMPLE_REPLY_BYTES, SimpleReply, chunk, command, command_flag, errno, option, status_flag,
};

/// Bitmap "day" says that one sector has changed, and bitmap "new" says nothing.
struct Days;

impl Bitmaps for Days {
    fn names(&self) -> Vec<String> {
        vec!["day".into(), "new".into()]
    }

    fn runs(&self, name: &str, _offset_bytes: u64, len_bytes: u64) -> Option<Vec<BitmapRun>> {
        let (changed, clean) = (512, len_bytes - 512);
        Some(match name {
            "day" => vec![
                BitmapRun { len_bytes: changed, dirty: true },
                BitmapRun { len_bytes: clean, dirty: false },
            ],
            _ => Vec::new(),
        })
    }
}

struct WithBitmaps(Rc<CachedDevice>);

impl Exports for WithBitmaps {
    fn list(&self, _peer: &Peer) -> Vec<ExportEntry> {
        Vec::new()
    }

    fn open(&self, _name: &str, _peer: &Peer) -> Result<ExportHandle, Refusal> {
        let mut handle = ExportHandle::new(self.0.clone());
        handle.bitmaps = Some(Rc::new(Days));
        Ok(handle)
    }
}

/// What a client of these contexts is answered to one block status: of each chunk whether it is the
/// last, its context, and its extents.
async fn ask(
    device: &Rc<CachedDevice>,
    contexts: &[&str],
    flags: u16,
    len_bytes: u32,
) -> Vec<(bool, u32, Vec<(u32, u32)>)> {
    let server = Server::new(Rc::new(WithBitmaps(device.clone())), Limits::default());
    let stream = connect_raw(&server);
    let mut sent = 3u32.to_be_bytes().to_vec();
    sent.extend(option_bytes(option::STRUCTURED_REPLY, &[]));
    sent.extend(meta(option::SET_META_CONTEXT, "vol", contexts));
    sent.extend(go(option::GO, "vol"));
    let request =
        Request { flags, command: command::BLOCK_STATUS, cookie: 7, offset_bytes: 0, len_bytes };
    sent.extend(request.encode());
    sent.extend(Request { flags: 0, command: command::DISC, len_bytes: 0, ..request }.encode());
    stream.send_all(sent).await.0.unwrap();
    let mut got = Vec::new();
    while let (Ok(bytes @ 1..), buf) = stream.recv(vec![0; 4096], 0).await {
        got.extend_from_slice(&buf[..bytes]);
    }
    let magic = CHUNK_MAGIC.to_be_bytes();
    let begin = got.windows(4).position(|bytes| bytes == magic).expect("a chunk was sent");
    let mut rest = &got[begin..];
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let header = ChunkHeader::decode(rest).unwrap();
        assert_eq!((header.kind, header.cookie), (chunk::BLOCK_STATUS, 7));
        let (payload, after) = rest[CHUNK_HEADER_BYTES..].split_at(header.len_bytes as usize);
        let status = StatusPayload::decode(payload).unwrap();
        let extents = status.extents.iter().map(|extent| (extent.len_bytes, extent.flags));
        chunks.push((header.flags & CHUNK_DONE != 0, status.context, extents.collect()));
        rest = after;
    }
    chunks
}

#[test]
fn each_context_is_a_chunk_of_one_reply() {
    Runtime::simulated(1).block_on(async {
        let device = CachedDevice::new(1 << 20);
        device.put(0, &[1; 1024], true, false);
        let both = ["qemu:dirty-bitmap:day", BASE_ALLOCATION];
        let hole = status_flag::HOLE | status_flag::ZERO;
        let (allocation, bitmap) = (vec![(1024, 0), (3072, hole)], vec![(512, DIRTY), (3584, 0)]);
        assert_eq!(
            ask(&device, &both, 0, 4096).await,
            [(false, 1, allocation), (true, 2, bitmap)],
            "the first chunk is not the last"
        );
        assert_eq!(
            ask(&device, &both, command_flag::REQ_ONE, 4096).await,
            [(false, 1, vec![(1024, 0)]), (true, 2, vec![(512, DIRTY)])]
        );
    });
}

#[test]
fn what_is_unknown_is_allocated_and_may_have_changed() {
    Runtime::simulated(2).block_on(async {
        let device = CachedDevice::new(1 << 20);
        device.tells_allocation.set(false);
        assert_eq!(
            ask(&device, &[BASE_ALLOCATION, "qemu:dirty-bitmap:new"], 0, 4096).await,
            [(false, 1, vec![(4096, 0)]), (true, 2, vec![(4096, DIRTY)])]
        );
    });
}

// Such a client does not know how a chunk begins, nor how long it is.
#[test]
fn errors_are_simple_replies_without_an_agreement_on_others() {
    Runtime::simulated(3).block_on(async {
        let server = Server::new(Rc::new(WithBitmaps(CachedDevice::new(4096))), Limits::default());
        let stream = connect_raw(&server);
        let mut sent = 3u32.to_be_bytes().to_vec();
        sent.extend(go(option::GO, "vol"));
        let (offset_bytes, len_bytes) = (4096, 512);
        let request =
            Request { flags: 0, command: command::READ, cookie: 7, offset_bytes, len_bytes };
        sent.extend(request.encode());
        sent.extend(Request { command: command::DISC, len_bytes: 0, ..request }.encode());
        stream.send_all(sent).await.0.unwrap();
        let mut got = Vec::new();
        while let (Ok(bytes @ 1..), buf) = stream.recv(vec![0; 4096], 0).await {
            got.extend_from_slice(&buf[..bytes]);
        }
        let reply = SimpleReply { error: errno::EINVAL, cookie: 7 }.encode();
        assert_eq!(got[got.len() - SIMPLE_REPLY_BYTES..], reply);
    });
}
