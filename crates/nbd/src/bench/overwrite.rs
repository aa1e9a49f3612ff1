//! Data that the writes of a load would destroy, as block status reports it.

use std::fmt;

use forebay_device::BlockDevice;
use forebay_units::format_bytes;

use crate::client::Client;

/// Block status requests for one range. A server may report a short part in each reply.
const MAX_STATUS_REQUESTS: u32 = 256;

/// What the server reports about data in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFound {
    /// The server does not report allocation, or failed to.
    NotReported,
    /// The server reported the whole range.
    Exactly {
        /// Bytes in it that are allocated.
        data_bytes: u64,
    },
    /// The server reported a part of the range.
    AtLeast {
        /// Bytes in that part that are allocated.
        data_bytes: u64,
    },
}

impl fmt::Display for DataFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotReported => f.write_str("the server does not report whether it holds data"),
            Self::Exactly { data_bytes: 0 } => f.write_str("no data there now"),
            Self::Exactly { data_bytes } => {
                write!(f, "{} of data there now", format_bytes(data_bytes))
            }
            Self::AtLeast { data_bytes } => {
                write!(f, "at least {} of data there now", format_bytes(data_bytes))
            }
        }
    }
}

/// Asks the server how many of its first `len_bytes` are allocated. Reads no data.
pub(super) async fn find_data(client: &Client, len_bytes: u64) -> DataFound {
    if !client.knows_allocation() {
        return DataFound::NotReported;
    }
    let (mut seen_bytes, mut data_bytes) = (0, 0);
    for _ in 0..MAX_STATUS_REQUESTS {
        let Ok(extents) = client.allocation(seen_bytes, len_bytes - seen_bytes).await else {
            break;
        };
        for extent in extents {
            // The last extent may reach past the range.
            let within_bytes = extent.len_bytes.min(len_bytes - seen_bytes);
            seen_bytes += within_bytes;
            data_bytes += if extent.hole { 0 } else { within_bytes };
        }
        if seen_bytes == len_bytes {
            return DataFound::Exactly { data_bytes };
        }
    }
    if seen_bytes == 0 { DataFound::NotReported } else { DataFound::AtLeast { data_bytes } }
}
