//! Arguments of `forebay top`.

use clap::Args;

/// Arguments of `forebay top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// The pools; all that are served when none is named.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}
