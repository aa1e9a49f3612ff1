//! A load on one socket of vhost-user-blk through libblkio, which sleeps while it waits; what
//! `bench/sleeping_client.c` is for NBD.
//!
//! `vhost_load SOCKET MODE BLOCK_BYTES DEPTH SECONDS [SEED]`, where MODE is read, write or fua. It
//! prints one line of JSON: requests, seconds, bytes, and percentiles of latency in microseconds.

#![allow(clippy::disallowed_methods)] // An offline tool that measures real time.

use std::error::Error;
use std::mem::MaybeUninit;
use std::time::Instant;

use blkio::{Blkio, Blkioq, Completion, ReqFlags};

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Read,
    Write,
    Fua,
}

struct Load {
    queue: Blkioq,
    mode: Mode,
    memory: *mut u8,
    block_bytes: usize,
    blocks: u64,
    state: u64,
    begun: Vec<Instant>,
}

impl Load {
    /// Xorshift, as the other client draws.
    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn start(&mut self, slot: usize) {
        let at = self.random() % self.blocks * self.block_bytes as u64;
        let word = self.random();
        let buffer = self.memory.wrapping_add(slot * self.block_bytes);
        // SAFETY: the buffer is this slot's, aligned, and no request uses it now.
        unsafe { buffer.cast::<u64>().write(word) };
        self.begun[slot] = Instant::now();
        let flags = if self.mode == Mode::Fua { ReqFlags::FUA } else { ReqFlags::empty() };
        match self.mode {
            Mode::Read => self.queue.read(at, buffer, self.block_bytes, slot, flags),
            _ => self.queue.write(at, buffer, self.block_bytes, slot, flags),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, path, mode, block, depth, seconds, rest @ ..] = words.as_slice() else {
        return Err("usage: vhost_load SOCKET MODE BLOCK_BYTES DEPTH SECONDS [SEED]".into());
    };
    let mode = match mode.as_str() {
        "read" => Mode::Read,
        "write" => Mode::Write,
        "fua" => Mode::Fua,
        other => return Err(format!("no such mode: {other}").into()),
    };
    let (block_bytes, depth): (usize, usize) = (block.parse()?, depth.parse()?);
    let seconds: f64 = seconds.parse()?;
    let seed: u64 = rest.first().map_or(Ok(1), |seed| seed.parse())?;
    let mut disk = Blkio::new("virtio-blk-vhost-user")?;
    disk.set_str("path", path)?;
    disk.connect()?;
    let blocks = disk.get_u64("capacity")? / block_bytes as u64;
    let queue = disk.start()?.queues.remove(0);
    let region = disk.alloc_mem_region(depth * block_bytes)?;
    disk.map_mem_region(&region)?;
    let memory: *mut u8 = std::ptr::with_exposed_provenance_mut(region.addr);
    let state = 0x9e37_79b9_7f4a_7c15 ^ seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
    let begun = vec![Instant::now(); depth];
    let mut load = Load { queue, mode, memory, block_bytes, blocks, state, begun };
    let began = Instant::now();
    (0..depth).for_each(|slot| load.start(slot));
    let mut latencies_us: Vec<f64> = Vec::new();
    let mut active = depth;
    let mut done: Vec<MaybeUninit<Completion>> =
        (0..depth).map(|_| MaybeUninit::uninit()).collect();
    while active > 0 {
        let count = load.queue.do_io(&mut done, 1, None, None)?;
        let is_over = began.elapsed().as_secs_f64() >= seconds;
        for completion in &done[..count] {
            // SAFETY: the first `count` have been written.
            let completion = unsafe { completion.assume_init_ref() };
            if completion.ret != 0 {
                return Err(format!("a request failed: {}", completion.ret).into());
            }
            let slot = completion.user_data;
            latencies_us.push(load.begun[slot].elapsed().as_secs_f64() * 1e6);
            match is_over {
                true => active -= 1,
                false => load.start(slot),
            }
        }
    }
    let took = began.elapsed().as_secs_f64();
    latencies_us.sort_by(f64::total_cmp);
    let requests = latencies_us.len();
    let at = |share: f64| latencies_us[(share * (requests - 1) as f64) as usize];
    println!(
        "{{\"requests\":{requests},\"seconds\":{took:.6},\"bytes\":{},\"p50_us\":{:.1},\
         \"p99_us\":{:.1},\"p99_9_us\":{:.1}}}",
        requests * block_bytes,
        at(0.5),
        at(0.99),
        at(0.999),
    );
    Ok(())
}
