//! A front end of other authors, the crate blkio, against the server: data, zeros, discard, flush,
//! several queues, and refusals.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::rc::Rc;

use blkio::{Blkio, Blkioq, Completion, ReqFlags};
use forebay_device::{Device, MemoryDevice};
use forebay_rt::{self as rt, Runtime};
use forebay_vhost::{Disk, Disks, Limits, Server};

const SIZE_BYTES: u64 = 16 << 20;
const QUEUES: usize = 4;
const PIECE_BYTES: usize = 16 << 10;
/// Requests of each queue at once.
const PIECES: usize = 64;

struct OneDisk {
    device: Device,
    opened: Cell<u32>,
}

impl Disks for OneDisk {
    fn names(&self) -> Vec<String> {
        vec!["p/v".to_owned()]
    }

    fn open(&self, _name: &str, _peer: &str) -> Option<Disk> {
        self.opened.set(self.opened.get() + 1);
        let revoked = Box::pin(std::future::pending());
        Some(Disk { device: self.device.clone(), read_only: false, hold: None, revoked })
    }
}

/// Waits for `count` requests, and returns what they returned.
fn ended(queue: &mut Blkioq, count: usize) -> Vec<i32> {
    let mut completions: Vec<MaybeUninit<Completion>> =
        (0..count).map(|_| MaybeUninit::uninit()).collect();
    let done = queue.do_io(&mut completions, count, None, None).expect("the server answers");
    assert_eq!(done, count);
    let returned = |completion: MaybeUninit<Completion>| {
        // SAFETY: as many as were asked for have been written.
        unsafe { completion.assume_init() }.ret
    };
    completions.into_iter().map(returned).collect()
}

fn byte_of(at: u64) -> u8 {
    (at / 512 % 251 + 1) as u8
}

/// The life of one front end: writes, reads back, discards, and hangs up.
fn front_end(path: PathBuf) {
    let mut disk = Blkio::new("virtio-blk-vhost-user").expect("the driver is built in");
    disk.set_str("path", path.to_str().expect("a path in UTF-8")).unwrap();
    disk.connect().expect("the server agrees");
    assert_eq!(disk.get_u64("capacity").unwrap(), SIZE_BYTES);
    disk.set_i32("num-queues", QUEUES as i32).unwrap();
    let mut queues = disk.start().expect("the rings start").queues;
    let region = disk.alloc_mem_region(QUEUES * PIECES * PIECE_BYTES).unwrap();
    disk.map_mem_region(&region).expect("the server maps it");
    let none = ReqFlags::empty();
    let start: *mut u8 = std::ptr::with_exposed_provenance_mut(region.addr);
    // SAFETY: the region has as many bytes, and no request uses it while the slice is used.
    let memory = unsafe { std::slice::from_raw_parts_mut(start, QUEUES * PIECES * PIECE_BYTES) };
    for (at, byte) in memory.iter_mut().enumerate() {
        *byte = byte_of(at as u64);
    }
    // Each queue has its own pieces of the disk, all of them at once.
    let piece = |queue: usize, number: usize| (queue * PIECES + number) * PIECE_BYTES;
    for (q, queue) in queues.iter_mut().enumerate() {
        for number in 0..PIECES {
            let at = piece(q, number);
            let flags = if number % 2 == 0 { none } else { ReqFlags::FUA };
            queue.write(at as u64, memory[at..].as_ptr(), PIECE_BYTES, number, flags);
        }
    }
    for queue in &mut queues {
        assert!(ended(queue, PIECES).iter().all(|ret| *ret == 0));
        queue.flush(0, none);
        assert_eq!(ended(queue, 1), [0]);
    }
    // Read by other queues than those that wrote, and to other places.
    memory.fill(0);
    for (q, queue) in queues.iter_mut().enumerate() {
        for number in 0..PIECES {
            let (from, to) = (piece(QUEUES - 1 - q, number), piece(q, number));
            queue.read(from as u64, memory[to..].as_mut_ptr(), PIECE_BYTES, number, none);
        }
        assert!(ended(queue, PIECES).iter().all(|ret| *ret == 0));
        for number in 0..PIECES {
            let (from, to) = (piece(QUEUES - 1 - q, number), piece(q, number));
            let read = memory[to..to + PIECE_BYTES].iter().enumerate();
            for (offset, byte) in read {
                assert_eq!(*byte, byte_of((from + offset) as u64), "piece {number}, byte {offset}");
            }
        }
    }
    let queue = &mut queues[0];
    queue.write_zeroes(0, 1 << 20, 0, none);
    queue.write_zeroes(1 << 20, 4096, 0, ReqFlags::NO_UNMAP);
    queue.discard(2 << 20, 1 << 20, 0, none);
    assert_eq!(ended(queue, 3), [0; 3]);
    queue.read(0, memory.as_mut_ptr(), 4 << 20, 0, none);
    assert_eq!(ended(queue, 1), [0]);
    let zeros = |from: usize, to: usize| memory[from..to].iter().all(|byte| *byte == 0);
    assert!(zeros(0, (1 << 20) + 4096) && zeros(2 << 20, 3 << 20));
    assert_eq!(memory[3 << 20], byte_of(3 << 20));
    // Past the end: an error of that request, and no more.
    queue.read(SIZE_BYTES, memory.as_mut_ptr(), 4096, 0, none);
    assert!(ended(queue, 1)[0] < 0);
    queue.read(SIZE_BYTES - 4096, memory.as_mut_ptr(), 4096, 0, none);
    assert_eq!(ended(queue, 1), [0]);
}

#[test]
fn a_front_end_of_other_authors_reads_what_it_wrote() {
    let folder = std::env::temp_dir().join(format!("forebay-blkio-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let at = folder.clone();
    Runtime::real().expect("io_uring").block_on(async move {
        let device: Device = Rc::new(MemoryDevice::new("m", SIZE_BYTES));
        let disks = Rc::new(OneDisk { device, opened: Cell::new(0) });
        let server = Server::new(disks.clone(), &at, Limits::default()).unwrap();
        server.update();
        let path = server.socket_path("p/v");
        // The second one finds the server as if it were the first.
        for times in 1..=2 {
            let path = path.clone();
            rt::aside(move || front_end(path)).await;
            assert_eq!(disks.opened.get(), times);
            while server.connections() > 0 {
                rt::yield_now().await;
            }
        }
        assert!(server.take_events().is_empty());
        server.stop(forebay_units::Nanos::from_secs(5)).await;
    });
    std::fs::remove_dir_all(folder).unwrap();
}
