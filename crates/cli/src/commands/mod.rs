//! What each verb does. A command gives back the text for standard output, so that a pool that
//! was opened for it is closed before anything can go wrong with printing.

mod bench;
mod import;
mod iostat;
mod outcome;
mod pages;
mod pool;
mod requests;
mod scan;
mod serve;
mod status;
mod up;
mod volume;

pub use bench::bench_nbd;
pub use outcome::Outcome;
pub use pages::{completions, man};
pub use pool::pool;
pub use serve::serve;
pub use up::up;
pub use volume::volume;
