//! Arguments of `forebay volume …`.

use clap::Subcommand;
use forebay_units::parse_bytes;

use crate::properties;

use super::values::{Listing, NameList, VolumeName, name_list, property, volume_name};

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
    /// List volumes.
    #[command(after_help = "Example:\n  forebay volume list -Hp -o name,volsize -S used tank\n\n\
        Fields: name, used, available, referenced, volsize, refreservation, sync, and every other \
        property that 'forebay volume get all' shows.")]
    List {
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
        /// Only these pools or volumes.
        #[arg(value_name = "POOL[/VOL]")]
        names: Vec<String>,
    },
    /// Destroy a volume and its data.
    #[command(after_help = "Example:\n  forebay volume destroy tank/vol0")]
    Destroy {
        /// Even while clients are connected to it.
        #[arg(short)]
        force: bool,
        /// The volume.
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
        forebay volume get -Hp -o value used tank/vol0")]
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
        /// Only these pools or volumes.
        #[arg(value_name = "POOL[/VOL]")]
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
