//! Arguments of `forebay volume …`.

use clap::{Subcommand, ValueEnum};
use forebay_units::parse_bytes;

use crate::properties;

use super::values::{Listing, NameList, VolumeName, name_list, property, volume_name};

/// What `volume list` lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListedKind {
    /// Volumes.
    Volume,
    /// Snapshots.
    Snapshot,
    /// Volumes, each before its snapshots.
    All,
}

/// The verbs of `forebay volume`.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a volume.
    #[command(after_help = "Example:\n  forebay volume create -V 8G -o sync=standard tank/vol0")]
    Create {
        /// Size that clients see.
        #[arg(short = 'V', value_name = "SIZE", value_parser = parse_bytes,
            allow_hyphen_values = true)]
        size_bytes: u64,
        /// Sparse (thin): set no space aside.
        #[arg(short)]
        sparse: bool,
        /// Set a property, such as sync=standard|always|disabled; may be given several times.
        #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = property)]
        options: Vec<(String, String)>,
        /// Name of the new volume.
        #[arg(value_name = "POOL/VOL", value_parser = volume_name)]
        volume: VolumeName,
    },
    /// List volumes and snapshots.
    #[command(after_help = "Examples:\n  forebay volume list -Hp -o name,volsize -S used tank\n  \
        forebay volume list -t snapshot tank/vol0\n\n\
        Fields: name, used, available, referenced, volsize, refreservation, sync, and every other \
        property that 'forebay volume get all' shows; of snapshots name, used, referenced, \
        volsize, creation, clones and holds.")]
    List {
        /// What to list.
        #[arg(short = 't', value_name = "TYPE", default_value = "volume")]
        kind: ListedKind,
        /// How to print.
        #[command(flatten)]
        listing: Listing,
        /// Fields to print, separated by commas.
        #[arg(short = 'o', value_name = "FIELD,...", value_parser = name_list)]
        fields: Option<NameList>,
        /// Sort by this field; where it is equal, by the next one given.
        #[arg(short = 's', value_name = "FIELD")]
        ascending: Vec<String>,
        /// The same in descending order.
        #[arg(short = 'S', value_name = "FIELD", conflicts_with = "ascending")]
        descending: Vec<String>,
        /// Only these pools, volumes or snapshots.
        #[arg(value_name = "POOL[/VOL[@SNAP]]")]
        names: Vec<String>,
    },
    /// Destroy a volume and its data, or snapshots.
    #[command(after_help = "Examples:\n  forebay volume destroy tank/vol0\n  \
        forebay volume destroy tank/vol0@monday,tuesday\n  \
        forebay volume destroy tank/vol0@first%last\n\n\
        A range FIRST%LAST takes both ends in; without one of them it begins with the oldest or \
        ends with the newest snapshot. The names of destroyed snapshots are free at once; their \
        space follows.")]
    Destroy {
        /// Even while clients are connected to it.
        #[arg(short)]
        force: bool,
        /// The snapshots of the volume too.
        #[arg(short)]
        recursive: bool,
        /// The volume or the snapshots.
        #[arg(value_name = "POOL/VOL[@SNAP,...]", value_parser = volume_name)]
        volume: VolumeName,
    },
    /// Take snapshots, all of them at one instant.
    #[command(
        after_help = "Example:\n  forebay volume snapshot tank/db@monday tank/log@monday\n\n\
        A snapshot holds what was answered before the command, and takes space as its volume \
        changes. It is an NBD export, read-only. Snapshots of several pools are not of one \
        instant."
    )]
    Snapshot {
        /// The volumes and the names of their new snapshots.
        #[arg(required = true, value_name = "POOL/VOL@SNAP", value_parser = volume_name)]
        snapshots: Vec<VolumeName>,
    },
    /// Take a volume back to a snapshot.
    #[command(after_help = "Example:\n  forebay volume rollback tank/vol0@monday\n\n\
        What was written since is lost. Disconnect clients first: what they have in memory is not \
        taken back.")]
    Rollback {
        /// Destroy the snapshots that were taken since.
        #[arg(short)]
        recursive: bool,
        /// Even while clients are connected: they are disconnected.
        #[arg(short)]
        force: bool,
        /// The snapshot.
        #[arg(value_name = "POOL/VOL@SNAP", value_parser = volume_name)]
        snapshot: VolumeName,
    },
    /// Create a volume that begins as a snapshot.
    #[command(after_help = "Example:\n  forebay volume clone tank/vol0@monday tank/test\n\n\
        A clone takes space only for what differs from its snapshot, which cannot be destroyed \
        before it.")]
    Clone {
        /// Set a property, such as sync=standard|always|disabled; may be given several times.
        #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = property)]
        options: Vec<(String, String)>,
        /// The snapshot.
        #[arg(value_name = "POOL/VOL@SNAP", value_parser = volume_name)]
        snapshot: VolumeName,
        /// Name of the new volume, in the same pool.
        #[arg(value_name = "POOL/NEW", value_parser = volume_name)]
        volume: VolumeName,
    },
    /// Turn a clone and the volume that it was cloned from around.
    #[command(after_help = "Example:\n  forebay volume promote tank/test\n\n\
        The snapshot that the clone began as, and the older ones, become the clone's. The volume \
        that they were of becomes a clone of that snapshot, and can be destroyed. Clients of both \
        volumes notice nothing; a snapshot that a client has open by its old name is a reason to \
        refuse.")]
    Promote {
        /// Even while clients have one of these snapshots open: they are disconnected.
        #[arg(short)]
        force: bool,
        /// The clone.
        #[arg(value_name = "POOL/VOL", value_parser = volume_name)]
        volume: VolumeName,
    },
    /// Give a volume or a snapshot another name.
    #[command(after_help = "Examples:\n  forebay volume rename tank/vol0 tank/mail\n  \
        forebay volume rename tank/vol0@monday tank/vol0@week1\n\n\
        Snapshots go with their volume. What clients have open by the old name is a reason to \
        refuse.")]
    Rename {
        /// Even while clients are connected: they are disconnected.
        #[arg(short)]
        force: bool,
        /// The volume or snapshot.
        #[arg(value_name = "POOL/VOL[@SNAP]", value_parser = volume_name)]
        name: VolumeName,
        /// Its new name: of a volume in the same pool, of a snapshot of the same volume.
        #[arg(value_name = "POOL/NEW|POOL/VOL@NEW", value_parser = volume_name)]
        new_name: VolumeName,
    },
    /// Keep snapshots from being destroyed.
    #[command(after_help = "Example:\n  forebay volume hold backup tank/vol0@monday")]
    Hold {
        /// A word for the reason; several may hold a snapshot.
        tag: String,
        /// The snapshots.
        #[arg(required = true, value_name = "POOL/VOL@SNAP", value_parser = volume_name)]
        snapshots: Vec<VolumeName>,
    },
    /// Take a hold from snapshots.
    #[command(after_help = "Example:\n  forebay volume release backup tank/vol0@monday")]
    Release {
        /// The word that 'volume hold' was given.
        tag: String,
        /// The snapshots.
        #[arg(required = true, value_name = "POOL/VOL@SNAP", value_parser = volume_name)]
        snapshots: Vec<VolumeName>,
    },
    /// Write a snapshot, or what it has changed since an older one, as a stream.
    #[command(after_help = "Examples:\n  \
        forebay volume send tank/db@monday | ssh far forebay volume receive back/db\n  \
        forebay volume send -i @monday tank/db@tuesday | gzip\n\n\
        The stream goes to standard output. docs/send-stream.md describes it.")]
    Send {
        /// Only what changed since this older snapshot of the volume.
        #[arg(short = 'i', value_name = "@SNAP", conflicts_with = "token")]
        base: Option<String>,
        /// Send compressed blocks as they are, and contents that are shared once.
        #[arg(short = 'c')]
        as_stored: bool,
        /// Send nothing: only say how long the stream would be.
        #[arg(short = 'n')]
        dry_run: bool,
        /// Show on standard error what is sent, how much and how fast.
        #[arg(short)]
        verbose: bool,
        /// Go on where an interrupted stream ended: 'receive_resume_token' of the other volume.
        #[arg(short, value_name = "TOKEN")]
        token: Option<String>,
        /// The snapshot; with -t only if it was renamed.
        #[arg(value_name = "POOL/VOL@SNAP", value_parser = volume_name,
            required_unless_present = "token")]
        snapshot: Option<VolumeName>,
    },
    /// Make a snapshot of a stream, and its volume if it holds a whole one.
    #[command(after_help = "Example:\n  forebay volume receive back/db\n\n\
        The stream comes from standard input. Until it is whole no client sees the volume. A \
        stream that is cut short, damaged or in another order changes nothing.")]
    Receive {
        /// First take the volume back to its newest snapshot, and disconnect its clients.
        #[arg(short = 'F', conflicts_with = "abandon")]
        roll_back: bool,
        /// Keep what was received when the stream is interrupted, for 'volume send -t'.
        #[arg(short = 's', conflicts_with = "abandon")]
        resumable: bool,
        /// Show on standard error what is received, how much and how fast.
        #[arg(short, conflicts_with = "abandon")]
        verbose: bool,
        /// Give up what was kept of an interrupted stream.
        #[arg(short = 'A')]
        abandon: bool,
        /// The volume: a new one, or the one that an increment is for.
        #[arg(value_name = "POOL/VOL", value_parser = volume_name)]
        volume: VolumeName,
    },
    /// Change the size of a volume.
    #[command(after_help = "Example:\n  forebay volume resize -V 16G tank/vol0")]
    Resize {
        /// The new size.
        #[arg(short = 'V', value_name = "SIZE", value_parser = parse_bytes,
            allow_hyphen_values = true)]
        size_bytes: u64,
        /// Allow a smaller size: data past the new end is lost.
        #[arg(short)]
        force: bool,
        /// The volume.
        #[arg(value_name = "POOL/VOL", value_parser = volume_name)]
        volume: VolumeName,
    },
    /// Show properties.
    #[command(after_help = "Examples:\n  forebay volume get sync tank/vol0\n  \
        forebay volume get -Hp -o value used tank/vol0\n  \
        forebay volume get used,creation tank/vol0@monday")]
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
        /// Only these pools, volumes or snapshots.
        #[arg(value_name = "POOL[/VOL[@SNAP]]")]
        names: Vec<String>,
    },
    /// Set a property.
    #[command(after_help = properties::volume_set_help())]
    Set {
        /// The property and its value.
        #[arg(value_parser = property, value_name = "PROPERTY=VALUE")]
        property: (String, String),
        /// The volumes.
        #[arg(required = true, value_name = "POOL/VOL", value_parser = volume_name)]
        volumes: Vec<VolumeName>,
    },
}
