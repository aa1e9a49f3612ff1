#![doc = include_str!("../README.md")]

mod cache;
mod convert;
mod detect;
mod error;
mod event;
mod formats;
mod input;
mod kernel;
mod names;
mod pattern;
mod seek;
mod source;
mod summary;
mod text;
mod timeline;

pub use cache::{CacheStudy, MissCount};
pub use convert::{Converter, Target, UnknownTargetName};
pub use detect::{Format, UnknownFormatName};
pub use error::{Damage, Remarks, Rest, SkippedLines, TraceError};
pub use event::{DeviceIndex, Event, Flags, Op, Stage};
pub use forebay_cache::{Policy, UnknownPolicyName};
pub use formats::compact::CompactWriter;
pub use input::Bytes;
pub use kernel::{KERNEL_EVENTS, KernelEvents, LayoutError};
pub use names::Names;
pub use pattern::{Pattern, PatternOptions, PatternRow, Rules};
pub use seek::{Bucket, SeekGroup, SeekKey, SeekOptions, Seeks};
pub use source::{ReadOptions, Source, Stages};
pub use summary::{OpSummary, Percentiles, Summary, SummaryBuilder};
pub use text::TimeUnit;
pub use timeline::{Slot, Timeline};
