//! Command table: parser, help, manual pages and completions are all made from it.
//!
//! To add a command, add a variant here with its example, and an arm in `crate::run`.

mod attach;
mod doctor;
mod log_target;
mod pool;
mod qualify;
mod serve;
mod top;
mod trace;
mod values;
mod volume;

use std::path::PathBuf;

pub use attach::{AttachArgs, DetachArgs, DetachTarget, DriverChoice};
use clap::{Parser, Subcommand};
pub use doctor::DoctorArgs;
pub use log_target::{LogTargetArgs, Target};
pub use pool::{PoolCommand, ScanVerb};
pub use qualify::{
    CutDeviceArgs, PowerCutArgs, PowerCutCommand, PowerCutVerb, QualifyArgs, QualifyCommand,
    QualifyVerb, ReportArgs, SecondsRange, Wait, WitnessArgs,
};
pub use serve::{
    ListenAddress, SecurityArgs, ServeArgs, StandbyArgs, UpArgs, WebArgs, listen_address,
};
pub use top::TopArgs;
pub use trace::{
    CacheArgs, ConvertArgs, IopatternArgs, OnlyArgs, RecordArgs, RecordPoolArgs, ReplayArgs,
    SeeksizeArgs, SourceArgs, Speed, SummaryArgs, TraceCommand,
};
pub use values::{
    Listing, NameList, Report, VolumeName, name_list, pool_property, property, volume_name,
};
pub use volume::{ListedKind, VolumeCommand};

/// A hybrid storage pool in user space, served over NBD.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    about = "A hybrid storage pool in user space, served over NBD",
    long_about = "Forebay keeps volumes on a pool of files or disks and serves them over NBD. \
                  Synchronous writes are acknowledged from a small log device that all volumes \
                  share; data reaches the main store as full stripes, never over live data.\n\n\
                  Words, arguments and columns follow zpool and zfs.",
    after_help = "Example:\n  \
                  forebay up --size 8G     create a pool in ./forebay-data and serve it\n\n\
                  State (known pools, control sockets) is kept in $FOREBAY_STATE_DIR, else in the \
                  XDG state folder, or in /var/lib/forebay for root.",
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = false
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Quick start: create a pool of files when there is none, and serve it.
    #[command(after_help = "Example:\n  forebay up --dir ./forebay-data --size 8G\n\n\
        Creates four data files (raidz1), two mirrored log files and the volume vol0 in DIR. Run \
        again, it serves that pool. Ctrl-C closes the pool cleanly.")]
    Up(UpArgs),
    /// Watch served pools on a full screen: rates, latencies, devices, log, cleaning.
    #[command(after_help = "Example:\n  forebay top tank\n\n\
        q, Esc or Ctrl-C end it, Tab shows the next pool. Latencies are those of the last ten \
        seconds. Without a terminal it prints the lines of 'forebay pool iostat'.")]
    Top(TopArgs),
    /// Create, inspect and maintain pools.
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  forebay pool create tank raidz1 d0 d1 d2 d3 log mirror l0 l1"
    )]
    Pool {
        /// What to do.
        #[command(subcommand)]
        command: PoolCommand,
    },
    /// Create, inspect and change volumes.
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  forebay volume create -V 8G tank/vol0"
    )]
    Volume {
        /// What to do.
        #[command(subcommand)]
        command: VolumeCommand,
    },
    /// Attach a volume to this machine's kernel, as a block device.
    #[command(after_help = "Example:\n  \
        forebay attach tank/vol0                prints the device, such as /dev/nbd0\n  \
        mkfs.ext4 /dev/nbd0 && mount /dev/nbd0 /srv\n  \
        forebay volume list -o name,attached    where volumes are attached\n\n\
        A server must serve the pool. When it ends or is killed, reads and writes of the device \
        wait, and the next server takes the device over. When the volume is attached already, its \
        device is printed, and connections that have ended are made again. It needs root, and the \
        module nbd, which is loaded if it is not there.")]
    Attach(AttachArgs),
    /// Take an attached volume away from this machine's kernel.
    #[command(after_help = "Example:\n  forebay detach tank/vol0\n  forebay detach /dev/nbd0\n\n\
        A device that is mounted or open is refused. -f takes it away all the same: what was not \
        written yet is lost, and its users get errors.")]
    Detach(DetachArgs),
    /// Serve pools over NBD until interrupted.
    #[command(after_help = "Example:\n  forebay serve tank --listen unix:/run/forebay.sock\n\n\
        Without POOL it serves every known pool, and pools that are created or imported later. \
        Without --listen it listens on a Unix socket in the state folder and on 127.0.0.1:10809. \
        The export name of a volume is POOL/VOL.\n\n\
        A page of what the pools do, for a browser on this machine:\n  \
        forebay serve --web 127.0.0.1:8426\n\n\
        Listeners, TLS, limits and pools can also be named in a file:\n  \
        forebay serve --config /etc/forebay/forebay.toml --check")]
    Serve(ServeArgs),
    /// Serve pools as soon as the machine that has them lets them go, or is silent.
    #[command(after_help = "Example:\n  \
        forebay standby --take-over tank -d s3://backups/tank?size=2T -d nbds://10.0.0.2/log0 \
        --listen tcp:10.0.0.9:10809\n\n\
        It looks again every other second, and serves the pools from then on as 'forebay serve' \
        does. A machine is silent when its heartbeat has not moved for four seconds, in an object \
        store for ten. With --take-over the pool is then imported with -f: make sure that nothing \
        else may take it, or that its devices fence the other machine, as those in object stores \
        do.")]
    Standby(StandbyArgs),
    /// Measure performance.
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  forebay bench nbd nbd://127.0.0.1:10809/tank/vol0 \
            --read-percent 100"
    )]
    Bench {
        /// What to measure.
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Run the experiments of the device lab on simulated devices, in virtual time.
    #[command(after_help = "Example:\n  forebay simulate degradation --device vertex-2-ex \
        --out ./results\n  forebay simulate all --out ./results\n  forebay simulate --list")]
    Simulate(forebay_lab::simulate::Args),
    /// Analyze recorded block I/O: access pattern, seeks, latency, cache misses.
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  forebay trace iopattern sdb.blkparse.txt.gz\n  \
            forebay trace summary web_0.csv.gz"
    )]
    Trace {
        /// What to do.
        #[command(subcommand)]
        command: TraceCommand,
    },
    /// Measure whether a device is fit to hold a log.
    #[command(after_help = "Example:\n  forebay qualify ./trial.img                a new file, \
        removed at the end\n  \
        forebay qualify /dev/sdx --for zil --destroy /dev/sdx\n  \
        forebay qualify /dev/sdx --read-only\n  \
        forebay qualify sim:intel-320-300gb\n  \
        forebay qualify /dev/sdx --procedure ddrdrive-2012 --destroy /dev/sdx\n\n\
        It prints its plan, runs it and gives a verdict with reasons. Writes destroy what TARGET \
        holds: without --destroy it only writes to a file of its own. A device that is mounted or \
        open elsewhere is refused in any case. Every step is kept in a log, which 'forebay report' \
        shows; after Ctrl-C or a crash, --resume goes on with it.")]
    Qualify(QualifyCommand),
    /// Keep the acknowledgements of a power-cut test on another host.
    #[command(after_help = "Example:\n  \
        forebay witness --listen 0.0.0.0:10811 --key-file key\n  \
        forebay witness --listen 0.0.0.0:10811 --key-file key --cut-after 5-60 \\\n    \
            --cut-command 'ipmitool -H bmc -U admin -f pw chassis power cycle'\n  \
        forebay witness --show\n\n\
        'forebay qualify power-cut' on the machine under test reports to it. Each acknowledgement \
        is kept in FILE, with every verdict and the bound that they prove. The command finds the \
        cycle's number in FOREBAY_CYCLE and the device in FOREBAY_DEVICE. An address that other \
        machines reach takes a key, which both hosts have: 'head -c 32 /dev/urandom | base64 >key' \
        makes one, for a file of mode 0600. Messages are authenticated, and not encrypted.")]
    Witness(WitnessArgs),
    /// Check the machine and the devices of pools, and say what to change.
    #[command(after_help = "Example:\n  forebay doctor\n  forebay doctor tank /dev/sdx\n\n\
        It changes nothing and imports no pool. The exit code is 1 when there is a warning.")]
    Doctor(DoctorArgs),
    /// Serve devices to pools of other hosts, as sides of their logs.
    #[command(after_help = "Example:\n  \
        forebay log-target --listen tcp:10.0.0.2:10809 --plaintext log0=/dev/nvme0n1p4\n  \
        forebay log-target --plaintext log0=dram:4G,protection=none log1=./log1\n\n\
        On the other host: forebay pool create tank … log mirror /dev/nvme0n1p3 \
        nbd://10.0.0.2/log0\n\n\
        One client at a time writes to a device. Another one takes it over with its first write, \
        if nothing was written since it connected; from then on the client before it is refused.")]
    LogTarget(LogTargetArgs),
    /// Make a page of results of 'forebay qualify', and of traces.
    #[command(after_help = "Example:\n  forebay report qualify-sdx.fbq -o sdx.html\n  \
        forebay report --markdown before.fbq after.fbq\n  \
        forebay report sdb.fbt sdc.blkparse.txt.gz -o traces.html\n\n\
        The page is one file that opens without a network: verdict, charts, tables, conditions \
        and raw data.")]
    Report(ReportArgs),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  forebay completions bash > \
        ~/.local/share/bash-completion/completions/forebay")]
    Completions {
        /// The shell.
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all pages into a folder.
    #[command(after_help = "Example:\n  forebay man | man -l -\n  forebay man ./man1")]
    Man {
        /// Folder for one page per command; created when it is missing.
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// The verbs of `forebay bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Put a load on an NBD server, and print its rate and latencies.
    #[command(after_help = "Example:\n  \
        forebay bench nbd nbd://127.0.0.1:10809/tank/vol0 --read-percent 100\n  \
        forebay bench nbd nbd://127.0.0.1:10809/tank/scratch --overwrite --fua --queue-depth 1\n\n\
        Writes destroy what the export holds: without --overwrite, only a load of reads alone is \
        run.")]
    Nbd(forebay_nbd::bench::BenchArgs),
}

#[cfg(test)]
mod tests;
