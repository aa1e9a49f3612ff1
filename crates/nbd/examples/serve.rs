//! Serves a device in memory, a file, or a device without data over NBD, for measurements.
//!
//! Example: `serve memory --socket /tmp/trial.sock`

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use clap::{Parser, ValueEnum};
use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, FileDevice, Geometry, IoBuf, IoBytes,
    MemoryDevice, OpenOptions, ZeroOptions,
};
use forebay_nbd::{FixedExports, Limits, Server};
use forebay_rt::Runtime;
use forebay_rt::signal::Signals;
use forebay_units::{Nanos, parse_bytes};

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// A device that discards writes and reads zeros: it shows the cost of the protocol alone.
    Null,
    /// A null device whose operations wait for one turn of the event loop, as real devices do.
    Deferred,
    /// A device in memory.
    Memory,
    /// A file or block device, with O_DIRECT.
    File,
}

#[derive(Parser)]
struct Args {
    kind: Kind,
    /// Unix socket to listen on.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// TCP address to listen on.
    #[arg(long)]
    listen: Option<std::net::SocketAddr>,
    /// Size of the kinds null, deferred and memory.
    #[arg(long, default_value = "1G", value_parser = parse_bytes)]
    size: u64,
    /// Path of the file.
    #[arg(long, required_if_eq("kind", "file"))]
    path: Option<PathBuf>,
    /// Name of the export, besides the empty one.
    #[arg(long, default_value = "trial")]
    export: String,
}

struct NullDevice {
    geometry: Geometry,
    deferred: bool,
}

impl NullDevice {
    async fn wait(&self) {
        if self.deferred {
            forebay_rt::yield_now().await;
        }
    }
}

impl BlockDevice for NullDevice {
    fn name(&self) -> &str {
        "null"
    }
    fn geometry(&self) -> Geometry {
        self.geometry
    }
    fn read(&self, _offset_bytes: u64, mut buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            self.wait().await;
            buf.fill(0);
            Ok(buf)
        })
    }
    fn write(&self, _offset_bytes: u64, _data: IoBytes, _fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async {
            self.wait().await;
            Ok(())
        })
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
    fn discard(&self, _offset_bytes: u64, _len_bytes: u64, _fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
    fn write_zeroes(&self, _: u64, _: u64, _: ZeroOptions) -> DeviceFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

async fn open(args: &Args) -> Result<Device, DeviceError> {
    Ok(match args.kind {
        Kind::Null | Kind::Deferred => Rc::new(NullDevice {
            geometry: Geometry {
                size_bytes: args.size,
                block_bytes: 512,
                volatile_cache: true,
                discard_bytes: 4096,
                read_only: false,
            },
            deferred: matches!(args.kind, Kind::Deferred),
        }),
        Kind::Memory => Rc::new(MemoryDevice::new("memory", args.size)),
        Kind::File => {
            let path = args.path.as_deref().expect("clap asks for it");
            let options = OpenOptions { exclusive: true, read_only: false };
            Rc::new(FileDevice::open(path, options).await?)
        }
    })
}

async fn serve(args: Args) -> Result<(), Box<dyn std::error::Error>> {
    let device = open(&args).await?;
    let exports = FixedExports::new().with("", device.clone()).with(&args.export, device);
    let server = Server::new(Rc::new(exports), Limits::default());
    if let Some(path) = &args.socket {
        println!("{}", server.listen_unix(path, 0o600)?);
    }
    if let Some(address) = args.listen {
        println!("{}", server.listen_tcp(address)?);
    }
    Signals::interrupts()?.next().await?;
    let left = server.stop(Nanos::from_secs(5)).await;
    if left > 0 {
        eprintln!("serve: abandoned {left} connections");
    }
    println!("{:?}", server.counts());
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match Runtime::real() {
        Ok(runtime) => runtime.block_on(serve(args)),
        Err(e) => Err(e.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("serve: {e}");
            ExitCode::FAILURE
        }
    }
}
