//! Clients of other projects against this server, and this client against other servers. A test
//! whose tool is missing prints that it is skipped.

#![allow(clippy::disallowed_methods, reason = "real clients need real files and processes")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use forebay_device::{BlockDevice, Device, FileDevice, IoBuf, MemoryDevice, OpenOptions};
use forebay_nbd::bench::{BenchArgs, Cancellation, Pattern, run};
use forebay_nbd::{Client, FixedExports, Limits, Server};
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

const SIZE_BYTES: u64 = 16 << 20;

fn have(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = [PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")];
    let found = std::env::split_paths(&path).chain(extra).any(|dir| dir.join(tool).is_file());
    if !found {
        // The test harness would capture the output of a macro.
        let _ = writeln!(std::io::stderr(), "\nSKIPPED: {tool} is not installed\n");
    }
    found
}

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        // The build's folder, because O_DIRECT does not work on every /tmp.
        let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = root.join(format!("nbd-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A socket path outside the build's folder, whose path may be too long for a socket.
    fn socket(&self) -> PathBuf {
        let name = self.0.file_name().unwrap().to_str().unwrap();
        std::env::temp_dir().join(format!("{name}.sock"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn random_file(path: &Path, len: u64) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(len as usize);
    while (bytes.len() as u64) < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    std::fs::write(path, bytes).unwrap();
}

/// Runs a command to its end without blocking the server on this thread; returns its output.
async fn command(line: Vec<String>) -> String {
    let shown = line.join(" ");
    let output = rt::compute(Nanos::ZERO, move || {
        Command::new(&line[0]).args(&line[1..]).stdin(Stdio::null()).output().expect("it starts")
    })
    .await;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown}\n{}\n{out}\n{err}", output.status);
    out
}

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

/// Runs `test` with a server of a device in memory, then of a file.
fn with_server<F: Future<Output = ()> + 'static>(
    name: &str,
    test: impl Fn(String, Rc<Folder>, Rc<Server>) -> F + 'static,
) {
    for kind in ["memory", "file"] {
        let folder = Rc::new(Folder::new(&format!("{name}-{kind}")));
        let device: Device = if kind == "memory" {
            Rc::new(MemoryDevice::new("memory", SIZE_BYTES))
        } else {
            let path = folder.file("disk");
            std::fs::File::create(&path).unwrap().set_len(SIZE_BYTES).unwrap();
            let opening = async move { FileDevice::open(&path, OpenOptions::default()).await };
            Rc::new(Runtime::real().expect("io_uring").block_on(opening).unwrap())
        };
        let exports = FixedExports::new().with("tank/vol", device.clone()).with("", device);
        let running = test_running(folder, exports, &test);
        Runtime::real().expect("io_uring").block_on(running);
    }
}

fn test_running<F: Future<Output = ()> + 'static>(
    folder: Rc<Folder>,
    exports: FixedExports,
    test: &impl Fn(String, Rc<Folder>, Rc<Server>) -> F,
) -> impl Future<Output = ()> + 'static {
    let server = Server::new(Rc::new(exports), Limits::default());
    let socket = folder.socket();
    let uri = format!("nbd+unix:///tank/vol?socket={}", socket.display());
    let running = test(uri, folder, server.clone());
    async move {
        server.listen_unix(&socket, 0o600).unwrap();
        running.await;
        assert_eq!(server.stop(Nanos::from_secs(5)).await, 0);
        assert_eq!(server.connections(), 0);
        assert_eq!(
            server.counts().protocol_errors,
            0,
            "a correct client was taken for a broken one"
        );
    }
}

#[test]
fn nbdinfo_reports_the_exports_and_their_features() {
    if !have("nbdinfo") {
        return;
    }
    with_server("info", |uri, _, _| async move {
        let json = command(words(&["nbdinfo", "--list", "--json", &uri])).await;
        let all: serde_json::Value = serde_json::from_str(&json).unwrap();
        let names: Vec<_> = all["exports"].as_array().unwrap().iter().collect();
        assert_eq!(names.len(), 2);
        let one = names.iter().find(|e| e["export-name"] == "tank/vol").expect("listed");
        assert_eq!(one["export-size"], SIZE_BYTES);
        for ability in [
            "can_cache",
            "can_df",
            "can_fast_zero",
            "can_flush",
            "can_fua",
            "can_multi_conn",
            "can_trim",
            "can_zero",
        ] {
            assert_eq!(one[ability], true, "{ability}");
        }
        assert_eq!(one["is_read_only"], false);
        assert_eq!(one["block_size_minimum"], 512);
        assert_eq!(one["block_size_preferred"], 4096);
        assert_eq!(one["block_size_maximum"], 32 << 20);
        assert_eq!(one["contexts"][0], "base:allocation");
        let map = command(words(&["nbdinfo", "--map", &uri])).await;
        assert!(map.contains(&SIZE_BYTES.to_string()), "{map}");
    });
}

#[test]
fn nbdcopy_returns_what_it_wrote() {
    if !have("nbdcopy") {
        return;
    }
    with_server("copy", |uri, folder, _| async move {
        let (into, out) = (folder.file("in"), folder.file("out"));
        random_file(&into, SIZE_BYTES);
        for connections in ["--connections=1", "--connections=4"] {
            for way in ["--requests=64", "--synchronous"] {
                let into = into.to_str().unwrap();
                command(words(&["nbdcopy", "--flush", connections, way, into, &uri])).await;
                let _ = std::fs::remove_file(&out);
                let back = out.to_str().unwrap();
                command(words(&["nbdcopy", connections, way, &uri, back])).await;
                assert!(std::fs::read(into).unwrap() == std::fs::read(&out).unwrap());
            }
        }
        command(words(&["nbdcopy", &uri, "null:"])).await;
    });
}

#[test]
fn qemu_img_converts_to_and_from_the_export() {
    if !have("qemu-img") {
        return;
    }
    with_server("img", |uri, folder, _| async move {
        let (raw, qcow2) = (folder.file("raw"), folder.file("qcow2"));
        let (raw, qcow2) = (raw.to_str().unwrap(), qcow2.to_str().unwrap());
        random_file(Path::new(raw), SIZE_BYTES / 2);
        // The second half is a hole, so that the client writes zeroes with and without unmap.
        std::fs::File::options().write(true).open(raw).unwrap().set_len(SIZE_BYTES).unwrap();
        let convert = ["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", "-m", "16", "-W"];
        command(words(&[&convert[..], &[raw, &uri]].concat())).await;
        command(words(&["qemu-img", "compare", "-f", "raw", "-F", "raw", raw, &uri])).await;
        command(words(&["qemu-img", "convert", "-f", "raw", "-O", "qcow2", &uri, qcow2])).await;
        command(words(&["qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, qcow2])).await;
    });
}

#[test]
fn qemu_io_reads_the_patterns_it_wrote() {
    if !have("qemu-io") {
        return;
    }
    with_server("io", |uri, _, _| async move {
        let steps = [
            "write -P 1 0 1M",
            "write -f -P 2 4k 4k",
            "flush",
            "write -z 64k 64k",
            "write -z -u 256k 64k",
            "write -z -f 512k 4k",
            "discard 128k 64k",
            "write -P 9 512 512",
            "aio_write -P 5 2M 64k",
            "aio_write -P 6 3M 64k",
            "aio_flush",
            "read -P 1 0 512",
            "read -P 9 512 512",
            "read -P 2 4k 4k",
            "read -P 0 64k 64k",
            "read -P 0 256k 64k",
            "read -P 0 512k 4k",
            "read -P 5 2M 64k",
            "read -P 6 3M 64k",
            "read -P 1 8k 8k",
        ];
        let mut line = words(&["qemu-io", "-f", "raw"]);
        for step in steps {
            line.extend(words(&["-c", step]));
        }
        line.push(uri);
        let out = command(line).await;
        assert!(!out.contains("Pattern verification failed"), "{out}");
        assert!(!out.contains("failed"), "{out}");
    });
}

#[test]
fn fio_verifies_its_writes() {
    if !have("fio") {
        return;
    }
    with_server("fio", |uri, folder, _| async move {
        let engines = command(words(&["fio", "--enghelp"])).await;
        if !engines.contains("nbd") {
            let _ = writeln!(std::io::stderr(), "\nSKIPPED: this fio has no NBD engine\n");
            return;
        }
        for sizes in ["--bs=4k", "--bsrange=512-128k"] {
            let aux = format!("--aux-path={}", folder.0.display());
            // Overlapping writes in flight have no order, so fio must serialize them.
            command(words(&[
                "fio",
                "--name=v",
                "--ioengine=nbd",
                &format!("--uri={uri}"),
                "--rw=randwrite",
                sizes,
                "--serialize_overlap=1",
                "--iodepth=32",
                "--size=16m",
                "--io_size=24m",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_backlog=256",
                "--fsync=64",
                &aux,
            ]))
            .await;
        }
    });
}

/// The path of the system's Python, which has the bindings.
const SYSTEM_PATH: &str = "PATH=/usr/bin:/bin:/usr/local/bin";

const NBDSH: &str = r#"
import os
h.set_strict_mode(0)
size = h.get_size()
def fails(f, *args, **kw):
    try:
        f(*args, **kw)
    except nbd.Error as e:
        return e.errno
    raise Exception("it succeeded: %r %r" % (f, args))
# Errors, after each of which the connection continues.
assert fails(h.pread, 512, size) == "EINVAL"
assert fails(h.pwrite, bytearray(512), size) == "ENOSPC"
assert fails(h.pwrite, bytearray(512), 7) == "EINVAL"
assert fails(h.pread, 511, 0) == "EINVAL"
assert fails(h.trim, 512, size) == "EINVAL"
assert fails(h.pwrite, bytearray(512), 0, 1 << 9) == "EINVAL"
assert fails(h.pread, (32 << 20) + 512, 0) == "EINVAL"
got = fails(h.pwrite, bytearray((32 << 20) + 512), 0)
assert got in ("EINVAL", "ENOSPC"), got
assert fails(h.pread, 0, 0) == "EINVAL"
# FUA on every command that has it.
buf = os.urandom(65536)
h.pwrite(buf, 4096, nbd.CMD_FLAG_FUA)
assert h.pread(65536, 4096) == buf
assert h.pread(65536, 4096, nbd.CMD_FLAG_DF) == buf
h.zero(4096, 4096, nbd.CMD_FLAG_FUA | nbd.CMD_FLAG_NO_HOLE)
h.trim(4096, 8192, nbd.CMD_FLAG_FUA)
h.cache(65536, 0)
h.flush()
assert h.pread(4096, 4096) == bytearray(4096)
# Block status covers the range.
found = []
def extent(context, offset, entries, err):
    assert context == "base:allocation"
    found.append((offset, list(entries)))
h.block_status(65536, 0, extent)
assert sum(found[0][1][0::2]) == 65536
# Many requests in flight, answered in any order.
ops = []
for i in range(200):
    b = nbd.Buffer.from_bytearray(bytearray(os.urandom(4096)))
    ops.append((i, b, h.aio_pwrite(b, i * 4096)))
while h.aio_in_flight() > 0:
    h.poll(-1)
for i, b, cookie in ops:
    assert h.aio_command_completed(cookie)
    assert h.pread(4096, i * 4096) == b.to_bytearray()
"#;

#[test]
fn libnbd_gets_correct_replies() {
    if !have("nbdsh") {
        return;
    }
    with_server("sh", |uri, _, server| async move {
        command(words(&[
            "env",
            SYSTEM_PATH,
            "nbdsh",
            "--base-allocation",
            "-u",
            &uri,
            "-c",
            NBDSH,
        ]))
        .await;
        // Options that fail, repeated and in unusual order.
        let odd = r#"
h.set_opt_mode(True)
h.set_strict_mode(0)
h.connect_uri(URI)
names = []
h.opt_list(lambda name, desc: names.append(name))
assert sorted(names) == ["", "tank/vol"], names
for name in ["nothing", "x" * 4096]:
    h.set_export_name(name)
    try:
        h.opt_info()
        raise Exception("it is there")
    except nbd.Error as e:
        pass
h.set_export_name("tank/vol")
h.opt_info()
seen = []
h.opt_list_meta_context(lambda name: seen.append(name))
assert seen == ["base:allocation"], seen
h.opt_go()
h.pread(512, 0)
h.shutdown()
"#;
        let odd = odd.replace("URI", &format!("{uri:?}"));
        command(words(&["env", SYSTEM_PATH, "nbdsh", "-c", &odd])).await;
        assert_eq!(server.counts().protocol_errors, 0);
    });
}

#[test]
fn nbd_client_lists_the_exports_over_tcp() {
    if !have("nbd-client") {
        return;
    }
    Runtime::real().unwrap().block_on(async {
        let device = Rc::new(MemoryDevice::new("memory", SIZE_BYTES));
        let exports = FixedExports::new().with("tank/vol", device);
        let server = Server::new(Rc::new(exports), Limits::default());
        let address = server.listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = address.rsplit(':').next().unwrap();
        let out = command(words(&["/usr/sbin/nbd-client", "-l", "127.0.0.1", port])).await;
        assert!(out.contains("tank/vol"), "{out}");
        let client = Client::connect(&format!("nbd://127.0.0.1:{port}/tank/vol")).await.unwrap();
        exercise(&client).await;
        drop(client);
        assert_eq!(server.stop(Nanos::from_secs(5)).await, 0);
    });
}

/// Uses every request of a client.
async fn exercise(client: &Client) {
    let data = |len: usize, salt: u8| {
        let mut buf = IoBuf::recycled(len);
        buf.iter_mut().enumerate().for_each(|(i, b)| *b = (i / 7) as u8 ^ salt);
        buf.freeze()
    };
    for (offset, len) in [(0u64, 512usize), (4096, 65536), (1 << 20, 3 << 20)] {
        client.write(offset, data(len, 1), true).await.unwrap();
        let back = client.read(offset, IoBuf::recycled(len)).await.unwrap();
        assert!(back[..] == data(len, 1)[..]);
    }
    let many = (0..64u64).map(|i| client.write((8 << 20) + i * 4096, data(4096, i as u8), false));
    for outcome in rt::join_all(many).await {
        outcome.unwrap();
    }
    client.flush().await.unwrap();
    for i in 0..64u64 {
        let back = client.read((8 << 20) + i * 4096, IoBuf::recycled(4096)).await.unwrap();
        assert!(back[..] == data(4096, i as u8)[..]);
    }
    client.write_zeroes(4096, 8192, Default::default()).await.unwrap();
    let back = client.read(4096, IoBuf::recycled(8192)).await.unwrap();
    assert!(back.iter().all(|b| *b == 0));
    client.discard(1 << 20, 1 << 20, false).await.unwrap();
    let runs = client.allocation(0, SIZE_BYTES).await.unwrap();
    assert!(!runs.is_empty());
    let past = client.read(SIZE_BYTES, IoBuf::recycled(512)).await;
    assert!(past.is_err());
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs this client and the load generator against another server.
fn against(tool: &str, name: &str, line: impl Fn(&str, &str) -> Vec<String>) {
    if !have(tool) {
        return;
    }
    let folder = Folder::new(name);
    let disk = folder.file("disk");
    std::fs::File::create(&disk).unwrap().set_len(SIZE_BYTES).unwrap();
    let socket = folder.socket();
    let line = line(socket.to_str().unwrap(), disk.to_str().unwrap());
    let child = Command::new(&line[0]).args(&line[1..]).stdin(Stdio::null()).spawn().unwrap();
    let running = Running(child);
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    Runtime::real().unwrap().block_on(async move {
        let mut client = Client::connect(&uri).await;
        for _ in 0..200 {
            if client.is_ok() {
                break;
            }
            rt::sleep(Nanos::from_millis(25)).await;
            client = Client::connect(&uri).await;
        }
        let client = client.unwrap();
        exercise(&client).await;
        client.close().await;
        let args = BenchArgs {
            uri,
            overwrite: true,
            pattern: Pattern::Random,
            read_percent: 50,
            block_size: 4096,
            queue_depth: 8,
            connections: 1,
            fua: true,
            flush_each: false,
            seconds: 0.0,
            count: Some(500),
            rate: None,
            warmup_seconds: 0.0,
            span: None,
            seed: 1,
            json: false,
        };
        let report = run(args, &Cancellation::new()).await.unwrap();
        assert_eq!(report.requests, 500);
    });
    drop(running);
    let _ = std::fs::remove_file(socket);
}

#[test]
fn client_works_with_nbdkit() {
    against("nbdkit", "kit", |socket, _| words(&["nbdkit", "-f", "-U", socket, "memory", "16M"]));
}

#[test]
fn client_works_with_qemu_nbd() {
    against("qemu-nbd", "qemu", |socket, disk| {
        words(&["qemu-nbd", "-t", "-f", "raw", "-e", "4", "-k", socket, disk])
    });
}
