use super::*;
use forebay_rt::Runtime;

struct TempFile(std::path::PathBuf);

impl TempFile {
    fn new(name: &str, size_bytes: u64) -> Self {
        // Next to the build, not in /tmp: a tmpfs may refuse O_DIRECT.
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../../target/device-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::File::create(&path).unwrap().set_len(size_bytes).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pattern(len: usize, salt: u8) -> IoBytes {
    let mut buf = IoBuf::recycled(len);
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte = (i % 251) as u8 ^ salt;
    }
    buf.freeze()
}

async fn exercise(device: Device) {
    let data = pattern(16384, 3);
    device.write(4096, data.clone(), true).await.unwrap();
    device.write(512, pattern(512, 9), false).await.unwrap();
    device.flush().await.unwrap();
    let back = device.read(4096, IoBuf::zeroed(16384)).await.unwrap();
    assert_eq!(&back[..], &data[..]);
    // A slice that starts in the middle of a page is written all the same.
    device.write(65536, data.slice(100, 1024), false).await.unwrap();
    let back = device.read(65536, IoBuf::recycled(1024)).await.unwrap();
    assert_eq!(&back[..], &data[100..1124]);
    device.write_zeroes(4096, 8192, ZeroOptions { fua: true, ..Default::default() }).await.unwrap();
    let back = device.read(4096, IoBuf::recycled(16384)).await.unwrap();
    assert!(back[..8192].iter().all(|b| *b == 0) && back[8192..] == data[8192..]);
    device.discard(8192, 4096, false).await.unwrap();
    write_in_parts(&device).await;

    let size = device.geometry().size_bytes;
    let past = device.write(size - 4096, pattern(8192, 1), false).await.unwrap_err();
    assert!(matches!(past.kind, ErrorKind::OutOfRange { .. }), "{past}");
    let odd = device.read(100, IoBuf::zeroed(512)).await.unwrap_err();
    assert!(matches!(odd.kind, ErrorKind::Misaligned { .. }), "{odd}");
    let overflow = device.read(u64::MAX - 511, IoBuf::zeroed(512)).await.unwrap_err();
    assert!(matches!(overflow.kind, ErrorKind::OutOfRange { .. }), "{overflow}");
}

/// Writes parts that a device takes where they are, parts in the middle of pages and sectors, and
/// more parts than the kernel takes at once.
async fn write_in_parts(device: &Device) {
    let (a, b) = (pattern(8192, 1), pattern(8192, 2));
    let all: Vec<Vec<IoBytes>> = vec![
        vec![a.clone()],
        vec![a.clone(), b.slice(4096, 4096), a.slice(4096, 4096)],
        vec![b.slice(512, 1024), a.slice(1024, 512)],
        vec![a.slice(1, 511), b.slice(2, 1)],
        (0..1200).map(|at| b.slice(at % 16 * 512, 512)).collect(),
    ];
    for (parts, fua) in all.into_iter().zip([true, false].into_iter().cycle()) {
        let whole: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
        device.write_vectored(131_072, parts, fua).await.unwrap();
        let back = device.read(131_072, IoBuf::recycled(whole.len())).await.unwrap();
        assert!(back[..] == whole[..], "{} bytes", whole.len());
    }
    let size = device.geometry().size_bytes;
    let parts = vec![a.clone(), b.clone()];
    let past = device.write_vectored(size - 8192, parts, false).await.unwrap_err();
    assert_eq!(past.kind, ErrorKind::OutOfRange { size_bytes: size });
    assert_eq!((past.operation, past.len_bytes), (Operation::Write, 16384));
    let odd = device.write_vectored(100, vec![a, b], false).await.unwrap_err();
    assert!(matches!(odd.kind, ErrorKind::Misaligned { .. }), "{odd}");
}

#[test]
fn file_device_takes_writes_in_parts() {
    let file = TempFile::new("parts", 1 << 20);
    let path = file.0.clone();
    Runtime::real().unwrap().block_on(async move {
        let device = FileDevice::open(&path, OpenOptions::default()).await.unwrap();
        let device: Device = Rc::new(device);
        write_in_parts(&device).await;
        let span = forebay_units::Nanos::from_secs(30);
        write_in_parts(&(Deadline::new(device, span) as Device)).await;
    });
}

#[test]
fn file_device_keeps_contract() {
    let file = TempFile::new("rw", 1 << 20);
    let path = file.0.clone();
    Runtime::real().unwrap().block_on(async move {
        let options = OpenOptions { exclusive: true, ..Default::default() };
        let device = FileDevice::open(&path, options).await.unwrap();
        let second = FileDevice::open(&path, options).await.err().expect("the lock holds");
        assert_eq!(second.kind, ErrorKind::Busy);
        let counted = layers::Counted::new(Rc::new(device));
        exercise(counted.clone()).await;
        let counts = counted.counts();
        assert_eq!((counts.writes, counts.flushes, counts.discards), (9, 1, 1));
        assert_eq!(counts.errors, 5);
    });
}

#[test]
fn file_that_was_cut_or_deleted_is_noticed() {
    let file = TempFile::new("presence", 1 << 20);
    let path = file.0.clone();
    Runtime::real().unwrap().block_on(async move {
        let device = FileDevice::open(&path, OpenOptions::default()).await.unwrap();
        let span = forebay_units::Nanos::from_secs(30);
        let device: Device = Deadline::new(Rc::new(device), span);
        assert_eq!(device.check_presence().await, Ok(()));
        let opened = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        opened.set_len(1 << 19).unwrap();
        let cut = device.check_presence().await.unwrap_err();
        assert_eq!(cut.kind, ErrorKind::OutOfRange { size_bytes: 1 << 19 });
        opened.set_len(1 << 20).unwrap();
        // Under another name it is still there.
        let moved = path.with_extension("moved");
        std::fs::rename(&path, &moved).unwrap();
        assert_eq!(device.check_presence().await, Ok(()));
        std::fs::remove_file(&moved).unwrap();
        let deleted = device.check_presence().await.unwrap_err();
        assert_eq!((deleted.kind, deleted.operation), (ErrorKind::Deleted, Operation::Check));
    });
}

#[test]
fn memory_device_keeps_contract() {
    Runtime::simulated(1).block_on(async {
        let recorded = layers::Recorded::new(Rc::new(MemoryDevice::new("mem", 1 << 20)), 100);
        exercise(recorded.clone()).await;
        let events = recorded.take();
        assert_eq!(events[0].operation, Operation::Write);
        assert!(events[0].fua && events[0].ok && !events.last().unwrap().ok);
    });
}

#[test]
fn memory_device_gives_back_what_a_plain_array_would() {
    let size = 1_u64 << 18;
    Runtime::simulated(1).block_on(async move {
        let device = MemoryDevice::new("mem", size);
        let mut model = vec![0_u8; size as usize];
        let mut state = 7_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for step in 0..2000_u32 {
            let offset = draw(size / 512) * 512;
            let len = draw((size - offset).min(150_000) / 512 + 1) * 512;
            let range = offset as usize..(offset + len) as usize;
            match draw(8) {
                0..=1 => {
                    let data = pattern(len as usize, step as u8);
                    model[range].copy_from_slice(&data);
                    device.write(offset, data, false).await.unwrap();
                }
                2 => {
                    model[range].fill(0);
                    device.discard(offset, len, false).await.unwrap();
                }
                _ => {
                    let mut buf = IoBuf::recycled(len as usize);
                    buf.fill(0xFF);
                    let back = device.read(offset, buf).await.unwrap();
                    assert!(back[..] == model[range], "step {step}: {len} bytes at {offset}");
                }
            }
        }
    });
}

#[test]
fn folder_or_missing_path_is_refused() {
    Runtime::real().unwrap().block_on(async {
        let open = |path| FileDevice::open(std::path::Path::new(path), OpenOptions::default());
        assert!(open("/proc/self").await.is_err());
        let text = open("/no/such").await.err().unwrap().to_string();
        assert!(text.starts_with("/no/such: open"), "{text}");
    });
}

#[test]
fn counted_layer_counts_sequential_writes() {
    Runtime::simulated(1).block_on(async {
        let counted = layers::Counted::new(Rc::new(MemoryDevice::new("mem", 1 << 20)));
        let device: Device = counted.clone();
        for offset in [0, 4096, 8192, 0, 4096] {
            device.write(offset, pattern(4096, 0), false).await.unwrap();
        }
        assert_eq!(counted.counts().sequential_writes, 3);
    });
}

/// Notes in how many parts each write arrives.
struct Parts(MemoryDevice, std::cell::RefCell<Vec<usize>>);

impl layers::Layer for Parts {
    fn inner(&self) -> &dyn BlockDevice {
        &self.0
    }
    fn write_vectored(&self, offset: u64, parts: Vec<IoBytes>, fua: bool) -> DeviceFuture<'_, ()> {
        self.1.borrow_mut().push(parts.len());
        self.0.write(offset, IoBytes::joined(parts), fua)
    }
}

#[test]
fn layers_that_pools_have_pass_parts_on() {
    Runtime::simulated(1).block_on(async {
        let parts = Rc::new(Parts(MemoryDevice::new("mem", 1 << 20), Vec::new().into()));
        let recorded = layers::Recorded::new(parts.clone(), 0);
        let writer = layers::SingleWriter::new(recorded.clone()).open();
        let span = forebay_units::Nanos::from_secs(30);
        let device: Device = layers::Counted::new(Deadline::new(writer, span));
        for limit in [0, 10] {
            recorded.set_limit(limit);
            let written = vec![pattern(4096, 1), pattern(4096, 2), pattern(8192, 3)];
            device.write_vectored(4096, written, true).await.unwrap();
        }
        assert_eq!(parts.1.take(), [3, 3]);
        let records = recorded.take();
        assert_eq!((records.len(), records[0].len_bytes, records[0].fua), (1, 16384, true));
    });
}

#[test]
fn reused_memory_is_zeroed_when_asked_for() {
    let mut held = Vec::new();
    let mut state = 1u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..20_000 {
        let (len, how) = (1 + draw(40_000) as usize, draw(4));
        let mut buf = if how == 0 { IoBuf::recycled(len) } else { IoBuf::zeroed(len) };
        assert!(how == 0 || buf.iter().all(|byte| *byte == 0), "zeroed({len}) is not");
        match how {
            // One byte spoils it; a truncated buffer leaves the rest of its memory as it is.
            1 => buf[draw(len as u64) as usize] = 1,
            2 => buf.truncate(draw(len as u64) as usize),
            _ => {}
        }
        held.push(buf);
        if draw(9) == 0 {
            held.clear();
        }
    }
}

#[test]
fn free_list_evicts_unused_sizes() {
    // In a thread of its own: each thread has its own free list.
    let thread = std::thread::spawn(|| {
        keep_freed(8 << 20);
        // Each of these sizes alone would fill the free list.
        for len in [100_000, 300_000] {
            let held: Vec<IoBuf> = (0..200).map(|_| IoBuf::recycled(len)).collect();
            drop(held);
        }
        let first = IoBuf::recycled(4096);
        let at = first.as_ptr() as usize;
        // Other memory in between, so that the allocator would give another place.
        let held: Vec<IoBuf> = (0..100).map(|_| IoBuf::recycled(4096)).collect();
        drop(first);
        let again = IoBuf::recycled(4096).as_ptr() as usize;
        drop(held);
        at == again
    });
    assert!(thread.join().unwrap());
}

/// An error of a layer above.
#[derive(Debug, PartialEq, Eq)]
struct Lost(u32);

/// Another error with the same words.
#[derive(Debug, PartialEq, Eq)]
struct AlsoLost;

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "block {} is lost", self.0)
    }
}

impl std::fmt::Display for AlsoLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("block 7 is lost")
    }
}

impl std::error::Error for Lost {}
impl std::error::Error for AlsoLost {}

#[test]
fn cause_keeps_the_type_of_an_error() {
    use std::error::Error;
    let error =
        |cause| DeviceError::new("d", Operation::Read, 0, 512, ErrorKind::Corrupt { cause });
    let lost = error(Cause::new(Lost(7)));
    assert_eq!(lost, error(Cause::new(Lost(7))));
    assert_ne!(lost, error(Cause::new(Lost(8))));
    assert_ne!(lost, error(Cause::new(AlsoLost)), "equal words are not equal errors");
    assert_eq!(lost.source().and_then(|cause| cause.downcast_ref()), Some(&Lost(7)));
    assert_eq!(lost.to_string(), "d: read of 512 bytes at offset 0: block 7 is lost");
}
