//! The lab's results as versioned JSON, and one self-contained HTML page that shows them.
//!
//! What enters: [`Results`], built by an experiment or read back from JSON.
//! What leaves: JSON that depends on the results alone (same results, same bytes), and a page that
//! opens without a network: data, charts, tables, styles and the chart library are all inside.
//! What always holds: the page shows nothing that is not in the results; every chart carries its
//! data table, its seed and the hash of its configuration; text from results is escaped.
//! Who calls me: the lab's driver and the `forebay` binary. I know neither devices nor pools.

mod html;
mod json;
mod page;
mod results;

pub use json::{ReadError, from_json, round_all, round_significant, to_json};
pub use page::render;
pub use results::{
    Axis, Band, Basis, Cell, Chart, ChartKind, Check, Column, Experiment, Finding, Mark, Point,
    Results, Role, SCHEMA, Series, Table, Value, X,
};

#[cfg(test)]
mod tests;
