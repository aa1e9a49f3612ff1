//! Properties of pools and volumes: one table for `set --help`, `get`, forebay-properties(7), and
//! `docs/properties.md`, which a test makes and compares.
//!
//! The settable ones come from `forebay-pool`, the read-only ones are in this crate.

use forebay_pool::properties::{POOL_PROPERTIES, Property, VOLUME_PROPERTIES};

/// A property that cannot be set.
pub struct ReadOnly {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub meaning: &'static str,
}

/// Read-only properties of a pool.
pub const POOL_READ_ONLY: &[ReadOnly] = &[
    ReadOnly { name: "size", meaning: "Bytes of the data devices, parity included." },
    ReadOnly { name: "allocated", meaning: "Bytes of size that hold live data and its parity." },
    ReadOnly { name: "free", meaning: "The rest of size." },
    ReadOnly { name: "capacity", meaning: "The share of size that is allocated." },
    ReadOnly { name: "version", meaning: "Version of the pool's format." },
    ReadOnly { name: "usable", meaning: "Bytes that all volumes together may take." },
    ReadOnly {
        name: "available",
        meaning: "Bytes of usable that no volume has taken or set aside.",
    },
    ReadOnly {
        name: "dedupratio",
        meaning: "Blocks that are de-duplicated, for each block that holds them.",
    },
    ReadOnly {
        name: "compressratio",
        meaning: "Blocks that are compressed, for each block that holds them.",
    },
    ReadOnly { name: "health", meaning: "ONLINE, DEGRADED, SUSPENDED or UNAVAIL." },
    ReadOnly { name: "guid", meaning: "The number that identifies the pool for good." },
];

/// Read-only properties of a volume.
pub const VOLUME_READ_ONLY: &[ReadOnly] = &[
    ReadOnly { name: "used", meaning: "Bytes that the volume takes from the pool." },
    ReadOnly { name: "available", meaning: "Bytes that the volume can still grow into." },
    ReadOnly { name: "referenced", meaning: "Bytes of its data." },
    ReadOnly { name: "written", meaning: "Bytes of it that were written since its last snapshot." },
    ReadOnly { name: "usedbysnapshots", meaning: "Bytes of used that only its snapshots hold." },
    ReadOnly {
        name: "compressratio",
        meaning: "Bytes of its data for each byte that they take, from a sample of it.",
    },
    ReadOnly { name: "origin", meaning: "The snapshot that it was cloned from." },
    ReadOnly { name: "attached", meaning: "The block device of this machine that it is." },
    ReadOnly { name: "refreservation", meaning: "Bytes that are set aside for it." },
    ReadOnly {
        name: "receive_resume_token",
        meaning: "With this word 'forebay volume send -t' goes on with an interrupted stream.",
    },
];

/// The size of a volume: `volume set` resizes it.
const VOLSIZE: Row<'static> = Row {
    name: "volsize",
    values: "a multiple of 4096",
    default: "-",
    effect: "The size that clients see. A smaller size needs 'forebay volume resize -f'.",
    takes_effect: "at once; clients see it when they connect again",
};

/// A row of a page.
#[derive(Clone, Copy)]
struct Row<'a> {
    name: &'a str,
    values: &'a str,
    default: &'a str,
    effect: &'a str,
    takes_effect: &'a str,
}

impl From<&'static Property> for Row<'static> {
    fn from(property: &'static Property) -> Self {
        let Property { name, values, default, effect, takes_effect, .. } = property;
        Self { name, values, default, effect, takes_effect }
    }
}

fn pool_rows() -> Vec<Row<'static>> {
    POOL_PROPERTIES.iter().map(Row::from).collect()
}

fn volume_rows() -> Vec<Row<'static>> {
    VOLUME_PROPERTIES.iter().map(Row::from).chain([VOLSIZE]).collect()
}

/// The default of a property of a pool or volume; `None` for one that has none.
#[must_use]
pub fn default_of(name: &str) -> Option<&'static str> {
    let all = POOL_PROPERTIES.iter().chain(VOLUME_PROPERTIES);
    all.into_iter().find(|property| property.name == name).map(|property| property.default)
}

/// The end of `pool set --help`.
#[must_use]
pub fn pool_set_help() -> String {
    set_help("forebay pool set comment=lab tank", &pool_rows())
}

/// The end of `volume set --help`.
#[must_use]
pub fn volume_set_help() -> String {
    set_help("forebay volume set sync=always tank/vol0", &volume_rows())
}

fn set_help(example: &str, rows: &[Row]) -> String {
    let mut text = format!("Example:\n  {example}\n\nProperties (see forebay-properties(7)):\n");
    for row in rows {
        text.push_str(&format!("  {:<15} {} [{}]\n", row.name, row.values, row.default));
    }
    text
}

/// The manual page forebay-properties(7).
#[must_use]
pub fn manual() -> String {
    let mut text = format!(
        ".TH forebay\\-properties 7 \"\" \"forebay {}\" Forebay\n\
         .SH NAME\nforebay\\-properties \\- properties of pools and volumes\n\
         .SH DESCRIPTION\n\
         .BR \"forebay pool get\" \" and \" \"forebay volume get\"\nshow properties,\n\
         .BR \"forebay pool set\" \" and \" \"forebay volume set\"\nchange them.\n",
        env!("CARGO_PKG_VERSION")
    );
    let parts =
        [("POOLS", pool_rows(), POOL_READ_ONLY), ("VOLUMES", volume_rows(), VOLUME_READ_ONLY)];
    for (title, rows, read_only) in parts {
        text.push_str(&format!(".SH PROPERTIES OF {title}\n"));
        for row in rows {
            let (name, values) = (roff(row.name), roff(row.values));
            text.push_str(&format!(".TP\n\\fB{name}\\fR=\\fI{values}\\fR\n"));
            text.push_str(&format!("{} The default is {}. ", roff(row.effect), roff(row.default)));
            text.push_str(&format!("A new value takes effect {}.\n", roff(row.takes_effect)));
        }
        text.push_str(&format!(".SH READ\\-ONLY PROPERTIES OF {title}\n"));
        for ReadOnly { name, meaning } in read_only {
            text.push_str(&format!(".TP\n.B {}\n{}\n", roff(name), roff(meaning)));
        }
    }
    text.push_str(
        ".SH \"SEE ALSO\"\n.BR forebay\\-pool\\-set (1),\n.BR forebay\\-volume\\-set (1)\n",
    );
    text
}

fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq")
}

#[cfg(test)]
mod tests;
