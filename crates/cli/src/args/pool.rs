//! Arguments of `forebay pool …`.

use std::path::PathBuf;

use clap::Subcommand;

use crate::properties;

use super::values::{Listing, NameList, Report, name_list, pool_property};

/// The verbs of `forebay pool`.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Create a pool.
    #[command(after_help = "Examples:\n  \
        forebay pool create tank raidz1 d0 d1 d2 d3 log mirror l0 l1\n  \
        forebay pool create tank mirror d0 d1 mirror d2 d3 log l0 cache ssd0\n\n\
        DEV is a file or block device that exists and has 64 MiB at least. A group begins with \
        raid0, mirror, raidz1, raidz2 or raidz3; devices before the first such word form a raid0 \
        group. A group has 24 devices at most. Each device after 'log' is a log device of its own, \
        unless 'mirror' stands before. Devices after 'cache' hold blocks that are read often. \
        Devices after 'spare' take the place of data devices that fail. A log device may be \
        memory that is saved when the power fails: log dram:4G,backup=DEV,ups=NAME@HOST")]
    Create {
        /// Use devices that carry a label already, and allow groups of different kinds.
        #[arg(short)]
        force: bool,
        /// Check everything, and show the layout without creating the pool.
        #[arg(short = 'n')]
        dry_run: bool,
        /// Set a property; may be given several times.
        #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = pool_property)]
        options: Vec<(String, String)>,
        /// Name of the new pool.
        pool: String,
        /// Groups of devices, as in: raidz1 DEV... log mirror DEV DEV
        #[arg(required = true, value_name = "VDEV")]
        vdevs: Vec<String>,
    },
    /// List the known pools.
    #[command(
        after_help = "Examples:\n  forebay pool list -v\n  forebay pool list -Hp -o name,free\n\n\
        Fields: name, size, allocated, free, capacity, health, server, usable, available, \
        dedupratio, compressratio, guid; of pools in object stores objects, stored, requests, \
        retries, cost, monthly. As \
        in zpool, size, allocated and free count bytes of the devices, parity included. usable is \
        what all volumes may take, and available the rest that no volume has set aside. server is \
        the id of the process that serves the pool."
    )]
    List {
        /// How to print.
        #[command(flatten)]
        listing: Listing,
        /// Also every group and device. SIZE of a device is its whole size.
        #[arg(short)]
        verbose: bool,
        /// Fields to print, separated by commas.
        #[arg(short = 'o', value_name = "FIELD,...", value_parser = name_list)]
        fields: Option<NameList>,
        /// Only these pools.
        #[arg(value_name = "POOL")]
        pools: Vec<String>,
    },
    /// Show health and devices of pools.
    #[command(after_help = "Example:\n  forebay pool status tank")]
    Status {
        /// How to print.
        #[command(flatten)]
        report: Report,
        /// Only pools that are not healthy.
        #[arg(short = 'x')]
        unhealthy: bool,
        /// Also list the blocks that are known to be lost, and the health of the drives (smartctl).
        #[arg(short)]
        verbose: bool,
        /// Only these pools.
        #[arg(value_name = "POOL")]
        pools: Vec<String>,
    },
    /// Show statistics of pools: traffic, amplification, log, segments, latency.
    #[command(after_help = "Example:\n  forebay pool stats tank --json")]
    Stats {
        /// How to print.
        #[command(flatten)]
        report: Report,
        /// Instead, what kept all other work of the server waiting for 500 us or more.
        #[arg(long)]
        polls: bool,
        /// Only these pools.
        #[arg(value_name = "POOL")]
        pools: Vec<String>,
    },
    /// Show operations and bandwidth, once or repeatedly.
    #[command(after_help = "Example:\n  forebay pool iostat -v tank 5\n\n\
        The first report is the average since import; each further one covers the interval \
        before it.")]
    Iostat {
        /// How to print.
        #[command(flatten)]
        listing: Listing,
        /// Also every device.
        #[arg(short)]
        verbose: bool,
        /// Leave out the first report, the average since import.
        #[arg(short = 'y')]
        skip_first: bool,
        /// Print the header once only.
        #[arg(short = 'n')]
        header_once: bool,
        /// Pools, then seconds between reports, then how many reports.
        #[arg(value_name = "POOL... [SECONDS [COUNT]]")]
        words: Vec<String>,
    },
    /// Import a pool, or list what could be imported.
    #[command(after_help = "Examples:\n  forebay pool import -d /srv/disks\n  \
        forebay pool import -d /srv/disks tank\n\n\
        Without -d, the block devices in /dev are searched. A known pool that is not served can be \
        imported once more: with -f, -m or -F to go on without what is missing, with --keep, and \
        with -d when its devices have moved.")]
    Import {
        /// A folder of devices, or a device, to search; may be given several times.
        #[arg(short = 'd', value_name = "DIR|DEV")]
        dirs: Vec<PathBuf>,
        /// Import every pool that is found.
        #[arg(short = 'a', conflicts_with = "pool")]
        all: bool,
        /// Import although the pool looks in use elsewhere, or missing devices may have newer data.
        #[arg(short)]
        force: bool,
        /// Accept a missing log device, and the loss of the writes on it.
        #[arg(short = 'm')]
        accept_log_loss: bool,
        /// Go back one root, past damage to the newest; repeat to go back further. Later writes are
        /// lost, with the log records that are later than the group after that root.
        #[arg(short = 'F', action = clap::ArgAction::Count)]
        rewind: u8,
        /// When the sides of a mirror diverged: go on with the data of DEV, and leave out the other
        /// devices.
        #[arg(long, value_name = "DEV", requires = "pool")]
        keep: Option<String>,
        /// List what could be imported as JSON.
        #[arg(long, conflicts_with_all = ["pool", "all"])]
        json: bool,
        /// Name or guid.
        pool: Option<String>,
    },
    /// Export a pool: close it and remove it from the list of known pools.
    #[command(after_help = "Example:\n  forebay pool export tank\n\n\
        An exported pool can be imported on another machine. A pool that is only closed (its \
        server has ended) stays known here.")]
    Export {
        /// Disconnect clients; remove a pool that cannot be opened from the list.
        #[arg(short)]
        force: bool,
        /// The pools.
        #[arg(required = true, value_name = "POOL")]
        pools: Vec<String>,
    },
    /// Destroy a pool and all its volumes.
    #[command(after_help = "Example:\n  forebay pool destroy tank")]
    Destroy {
        /// Disconnect clients.
        #[arg(short)]
        force: bool,
        /// The pool.
        pool: String,
    },
    /// Show properties.
    #[command(after_help = "Examples:\n  forebay pool get all tank\n  \
        forebay pool get -Hp -o value free tank")]
    Get {
        /// How to print.
        #[command(flatten)]
        listing: Listing,
        /// Fields to print, separated by commas: name, property, value, source, or all.
        #[arg(short = 'o', value_name = "FIELD,...", value_parser = name_list)]
        fields: Option<NameList>,
        /// Properties, separated by commas, or 'all'.
        #[arg(value_name = "PROPERTY,...", value_parser = name_list)]
        properties: NameList,
        /// Only these pools.
        #[arg(value_name = "POOL")]
        pools: Vec<String>,
    },
    /// Set a property.
    #[command(after_help = properties::pool_set_help())]
    Set {
        /// The property and its value.
        #[arg(value_parser = pool_property, value_name = "PROPERTY=VALUE")]
        property: (String, String),
        /// The pool.
        pool: String,
    },
    /// Show the commands that changed a pool.
    #[command(after_help = "Example:\n  forebay pool history tank")]
    History {
        /// Versioned JSON.
        #[arg(long)]
        json: bool,
        /// Only these pools.
        #[arg(value_name = "POOL")]
        pools: Vec<String>,
    },
    /// Show what happened to the devices, the log and the scans of served pools.
    #[command(after_help = "Example:\n  forebay pool events -f tank")]
    Events {
        /// Go on with the events that come, until Ctrl-C.
        #[arg(short, long)]
        follow: bool,
        /// An object of versioned JSON in each line.
        #[arg(long)]
        json: bool,
        /// Only these pools.
        #[arg(value_name = "POOL")]
        pools: Vec<String>,
    },
    /// Add data groups, log devices, cache devices or spares.
    #[command(after_help = "Examples:\n  \
        forebay pool add tank log mirror l0 l1\n  \
        forebay pool add tank cache ssd0")]
    Add {
        /// Use devices that carry a label already, and allow groups of different kinds.
        #[arg(short)]
        force: bool,
        /// The pool.
        pool: String,
        /// Groups of devices, as in: log mirror DEV DEV
        #[arg(required = true, value_name = "VDEV")]
        vdevs: Vec<String>,
    },
    /// Remove a log device (a log mirror by its name in 'pool status'; one side: detach), a cache
    /// device or a spare.
    #[command(after_help = "Example:\n  forebay pool remove tank mirror-1")]
    Remove {
        /// The pool.
        pool: String,
        /// The devices.
        #[arg(required = true, value_name = "DEV")]
        devices: Vec<String>,
    },
    /// Add a side to a device, making or widening a mirror.
    #[command(after_help = "Example:\n  forebay pool attach tank l0 l1")]
    Attach {
        /// Use a device that carries a label already.
        #[arg(short)]
        force: bool,
        /// Wait until it is resilvered.
        #[arg(short)]
        wait: bool,
        /// The pool.
        pool: String,
        /// A device of the pool.
        device: String,
        /// The new side.
        new_device: String,
    },
    /// Take a side out of a mirror.
    #[command(after_help = "Example:\n  forebay pool detach tank l1")]
    Detach {
        /// The pool.
        pool: String,
        /// The side.
        device: String,
    },
    /// Replace a device by a new one (or by a new one at the same path).
    #[command(after_help = "Example:\n  forebay pool replace tank d2 d9")]
    Replace {
        /// Use a device that carries a label already.
        #[arg(short)]
        force: bool,
        /// Wait until it is resilvered.
        #[arg(short)]
        wait: bool,
        /// The pool.
        pool: String,
        /// The device to replace.
        device: String,
        /// The new device; without it, the one now at the old path.
        new_device: Option<String>,
    },
    /// Take a device offline; the pool goes on without it.
    #[command(after_help = "Example:\n  forebay pool offline tank d2")]
    Offline {
        /// The pool.
        pool: String,
        /// The devices.
        #[arg(required = true, value_name = "DEV")]
        devices: Vec<String>,
    },
    /// Bring a device back online; what it missed is resilvered.
    #[command(after_help = "Examples:\n  forebay pool online tank d2\n  forebay pool online tank \
                      /dev/disk/by-id/nvme-0042-part1\n\nA device that has come back at another \
                      path is named by that path: its label says which device of the pool it is.")]
    Online {
        /// Wait until it is resilvered.
        #[arg(short)]
        wait: bool,
        /// The pool.
        pool: String,
        /// The devices.
        #[arg(required = true, value_name = "DEV")]
        devices: Vec<String>,
    },
    /// Reset error counters, bring faulted devices back, and go on with a suspended pool.
    #[command(after_help = "Examples:\n  forebay pool clear tank d2\n  forebay pool clear tank")]
    Clear {
        /// The pool.
        pool: String,
        /// The devices; all when none is named.
        #[arg(value_name = "DEV")]
        devices: Vec<String>,
    },
    /// Read everything, check it, and repair what is bad.
    #[command(after_help = "Example:\n  forebay pool scrub tank\n\n\
        The server of the pool runs the scrub. Without a server this command runs it, to its end.")]
    Scrub {
        /// Pause; 'scrub' without options resumes.
        #[arg(short = 'p', conflicts_with = "stop")]
        pause: bool,
        /// Stop.
        #[arg(short = 's')]
        stop: bool,
        /// Wait for its end.
        #[arg(short = 'w', conflicts_with_all = ["pause", "stop"])]
        wait: bool,
        /// The pools.
        #[arg(required = true, value_name = "POOL")]
        pools: Vec<String>,
    },
    /// Rebuild what devices missed.
    #[command(after_help = "Example:\n  forebay pool resilver tank")]
    Resilver {
        /// Wait for its end.
        #[arg(short = 'w')]
        wait: bool,
        /// The pools.
        #[arg(required = true, value_name = "POOL")]
        pools: Vec<String>,
    },
    /// Wait for the end of a scrub or resilver.
    #[command(after_help = "Example:\n  forebay pool wait -t resilver tank\n\n\
        Ends at once when nothing runs. The exit code is 1 when blocks could not be repaired.")]
    Wait {
        /// Wait only for these, separated by commas: scrub, resilver.
        #[arg(short = 't', value_name = "ACTIVITY,...", value_parser = name_list)]
        activities: Option<NameList>,
        /// The pool.
        pool: String,
    },
    /// Commit everything that was written so far to the data devices.
    #[command(after_help = "Example:\n  forebay pool sync tank\n\n\
        This empties the log. Acknowledged durable writes are durable without it.")]
    Sync {
        /// Only these pools.
        #[arg(value_name = "POOL")]
        pools: Vec<String>,
    },
    /// Bring pools to the newest version of the format.
    #[command(after_help = "Example:\n  forebay pool upgrade tank\n\n\
        Programs before this version cannot read the pool any more. Without it a pool stays as it \
        is, and has no snapshots if its format is older than they are.")]
    Upgrade {
        /// The pools.
        #[arg(required = true, value_name = "POOL")]
        pools: Vec<String>,
    },
    /// Clear the label of a pool from a device, so that it can be used for something else.
    #[command(after_help = "Example:\n  forebay pool labelclear /dev/sdb")]
    Labelclear {
        /// Even if the device is still part of a pool.
        #[arg(short)]
        force: bool,
        /// The devices.
        #[arg(required = true, value_name = "DEV")]
        devices: Vec<String>,
    },
}

/// What to do with a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanVerb {
    /// Start or resume.
    Start,
    /// Pause.
    Pause,
    /// Stop.
    Stop,
}
