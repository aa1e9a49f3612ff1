//! A full screen of what pools do, drawn once a second (`forebay top`, `forebay up --view`).
//!
//! What enters: moments of pools, keys. What leaves: a screen on the terminal's other page, so that
//! what stood there comes back. What always holds: nothing here changes a pool; the terminal is as
//! it was when the view is dropped. Who calls: `commands::top`, and the server of `forebay up`.

mod keys;
mod local;
mod moment;
mod view;

use forebay_units::Nanos;

pub use keys::Key;
pub use local::LocalView;
pub use moment::{Moment, Track};
pub use view::View;

/// Between two looks at the keys.
pub const KEYS_INTERVAL: Nanos = Nanos::from_millis(50);
