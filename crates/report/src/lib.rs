#![doc = include_str!("../README.md")]

mod html;
mod json;
mod page;
mod results;
mod text;

pub use json::{ReadError, from_json, round_all, round_significant, to_json};
pub use page::render;
pub use results::{
    Axis, Band, Basis, Bound, Cell, Chart, ChartKind, Check, Column, Experiment, Finding,
    Histogram, HistogramColumn, Mark, Point, Results, Role, SCHEMA, Series, Table, Value, X,
    generator,
};
pub use text::{to_csv, to_markdown};

#[cfg(test)]
mod tests;
