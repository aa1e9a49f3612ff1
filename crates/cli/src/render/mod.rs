//! Text and JSON of every listing.
//!
//! What enters: what pools report. What leaves: text for standard output. What always holds: no
//! I/O happens here. Who calls: `crate::commands`.

mod closed;
mod events;
mod iostat;
mod json;
mod numbers;
mod plan;
mod pool_list;
mod pools;
mod power_cut;
mod properties;
mod qualify;
mod stats;
mod status;
mod table;
mod trace;
mod tree;
mod volumes;

pub use closed::{Closed, closed_text};
pub use events::{advised, event_json, event_text};
pub use iostat::{IostatRow, iostat_header, iostat_json, iostat_rows, iostat_text};
pub use json::{JSON_VERSION, document, failure_json};
pub use numbers::{bytes, count, percent};
pub use plan::{plan_json, plan_text};
pub use pool_list::{Listed, Vdevs, check_pool_fields, pool_list};
pub use pools::{
    found_json, found_text, history_json, history_text, is_computed_of_pool, layout, pool_get,
};
pub use power_cut::{cut_findings_text, cut_tally_text};
pub use properties::get_columns;
pub use qualify::qualification_text;
pub use stats::{polls_text, stats_json, stats_text};
pub use status::{OpenPool, scan_text, status_json, status_text};
pub use trace::{
    CacheReport, PatternReport, SeekReport, TraceDigest, TraceHead, TraceRows, cache_json,
    cache_text, iopattern_heading, iopattern_line, pattern_json, seek_json, seek_text,
    summary_json, summary_text, trace_experiments, trace_names,
};
pub use volumes::{
    ListedVolume, Order, Versions, check_volume_fields, is_computed_of_volume, volume_get,
    volume_list,
};

#[cfg(test)]
mod tests;
