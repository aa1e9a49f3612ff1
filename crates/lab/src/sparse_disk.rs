//! A simulated disk over a device model that keeps next to nothing of what is written, so that
//! volumes of many gigabytes fit in memory.
//!
//! A block whose words are all alike takes eight bytes; other blocks (labels, maps) are kept whole.
//! It has no power cut: `forebay_sim::FlashDisk` is for that.

use forebay_device::{
    BlockDevice, Cause, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes, Operation,
    check_range,
};
use forebay_flash::{DeviceSpec, Model, Request, SpecError, Stats, Status};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, FixedMap, Nanos};
use std::cell::RefCell;
use std::rc::Rc;

struct State {
    model: Box<dyn Model>,
    latest: Nanos,
    /// The word that fills each block.
    words: Vec<u64>,
    /// Blocks of which the words differ.
    whole: FixedMap<usize, Box<[u8]>>,
}

/// A simulated SSD or DRAM SSD with sparse contents.
pub(crate) struct SparseDisk {
    name: String,
    geometry: Geometry,
    state: RefCell<State>,
}

impl SparseDisk {
    /// A new device of zeros.
    pub(crate) fn new(name: &str, spec: &DeviceSpec, seed: u64) -> Result<Rc<Self>, SpecError> {
        let model = forebay_flash::build(spec, seed)?;
        let identity = model.identity();
        let size_bytes = identity.capacity_bytes / BLOCK_BYTES * BLOCK_BYTES;
        let geometry = Geometry {
            size_bytes,
            block_bytes: BLOCK_BYTES as u32,
            volatile_cache: identity.volatile_cache,
            discard_bytes: BLOCK_BYTES as u32,
            read_only: false,
        };
        let words = vec![0; (size_bytes / BLOCK_BYTES) as usize];
        let state = State { model, latest: Nanos(0), words, whole: FixedMap::default() };
        Ok(Rc::new(Self { name: name.to_owned(), geometry, state: RefCell::new(state) }))
    }

    /// The model's statistics up to the last command.
    pub(crate) fn stats(&self) -> Stats {
        let state = self.state.borrow();
        state.model.stats(state.latest)
    }

    /// Sends a request to the model and waits until it is done.
    async fn carry_out(
        &self,
        operation: Operation,
        request: Request<'_>,
    ) -> Result<(), DeviceError> {
        let (offset, len) = (request.offset_bytes, request.len_bytes);
        let error = |kind| DeviceError::new(&self.name, operation, offset, len, kind);
        check_range(&self.name, &self.geometry, operation, offset, len)?;
        let done = {
            let state = &mut *self.state.borrow_mut();
            state.latest = state.latest.max(rt::now());
            let done = state.model.submit(state.latest, &request);
            done.map_err(|why| error(ErrorKind::Layer(Cause::new(why))))?
        };
        if done.at > rt::now() {
            rt::sleep_until(done.at).await;
        } else {
            rt::yield_now().await;
        }
        match done.status {
            Status::Done => Ok(()),
            Status::WornOut => Err(error(ErrorKind::WornOut)),
            Status::Unreadable { offset_bytes, len_bytes } => {
                Err(error(ErrorKind::Unreadable { offset_bytes, len_bytes }))
            }
        }
    }
}

fn blocks(offset_bytes: u64, len_bytes: u64) -> std::ops::Range<usize> {
    let first = (offset_bytes / BLOCK_BYTES) as usize;
    first..first + (len_bytes / BLOCK_BYTES) as usize
}

/// The word that fills `block`, if one does.
fn word_of(block: &[u8]) -> Option<u64> {
    let word = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
    (block[8..] == block[..BLOCK_LEN - 8]).then_some(word)
}

/// Fills `out` with `word`.
pub(crate) fn fill_with(out: &mut [u8], word: u64) {
    for chunk in out.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

impl State {
    fn write(&mut self, at: usize, block: &[u8]) {
        match word_of(block) {
            Some(word) => {
                self.words[at] = word;
                self.whole.remove(&at);
            }
            None => {
                self.whole.insert(at, block.into());
            }
        }
    }

    fn forget(&mut self, range: std::ops::Range<usize>) {
        for at in range.clone() {
            self.whole.remove(&at);
        }
        self.words[range].fill(0);
    }
}

impl BlockDevice for SparseDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset_bytes: u64, mut buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            let len = buf.len() as u64;
            self.carry_out(Operation::Read, Request::read(offset_bytes, len)).await?;
            let state = self.state.borrow();
            for (out, at) in buf.chunks_mut(BLOCK_LEN).zip(blocks(offset_bytes, len)) {
                match state.whole.get(&at) {
                    Some(block) => out.copy_from_slice(block),
                    None => fill_with(out, state.words[at]),
                }
            }
            Ok(buf)
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let request = Request::write(offset_bytes, data.len() as u64);
            let request = if fua { request.fua() } else { request };
            self.carry_out(Operation::Write, request).await?;
            let state = &mut *self.state.borrow_mut();
            let range = blocks(offset_bytes, data.len() as u64);
            for (block, at) in data.chunks(BLOCK_LEN).zip(range) {
                state.write(at, block);
            }
            Ok(())
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(self.carry_out(Operation::Flush, Request::flush()))
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64, _fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let request = Request::trim(offset_bytes, len_bytes);
            self.carry_out(Operation::Discard, request).await?;
            self.state.borrow_mut().forget(blocks(offset_bytes, len_bytes));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
