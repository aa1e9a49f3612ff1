//! `forebay trace cache`.

use std::io::Cursor;

use forebay_trace::{CacheStudy, CompactWriter, Policy};

use super::super::outcome::Outcome;
use super::ISSUE_FIRST;
use super::open::{Reading, is_readable_again};
use crate::args::CacheArgs;
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::render::{self, TraceHead};

pub fn cache(args: &CacheArgs) -> Result<Outcome, Failure> {
    if args.block_bytes == 0 {
        return Err(Failure::usage("a block of 0 bytes holds nothing"));
    }
    let mut reading = Reading::open(&args.source)?;
    let stage = reading.stage(args.source.at, &ISSUE_FIRST)?;
    let mut study = CacheStudy::new(args.block_bytes, stage, args.reads_only);
    // What cannot be read again is kept in the compact format, some eight bytes an event.
    let keeps = !is_readable_again(&args.source.source);
    let mut kept = CompactWriter::new(Vec::new(), reading.has_times());
    while let Some(event) = reading.next() {
        study.number_blocks(&event);
        if keeps {
            kept.event(&event, reading.names()).map_err(|e| Failure::io("memory", &e))?;
        }
    }
    if reading.is_interrupted() {
        reading.clear_progress();
        let message = "interrupted before the trace was read once; nothing was simulated";
        return Err(Failure::new(ErrorCode::Interrupted, message));
    }
    let (head, names) = reading.finish(stage);
    let complete = head.complete;
    let kept = kept.finish(&names).map_err(|e| Failure::io("memory", &e))?;

    let policies = if args.policies.is_empty() { &Policy::ALL[..] } else { &args.policies };
    let footprint = study.footprint_blocks();
    for size in &args.sizes {
        for policy in policies {
            study.add_cache(*policy, size.blocks(footprint, args.block_bytes));
        }
    }
    let mut reading = match keeps {
        true => Reading::again(&args.source, Box::new(Cursor::new(kept)))?,
        false => Reading::open(&args.source)?,
    };
    while let Some(event) = reading.next() {
        study.access(&event);
    }
    reading.clear_progress();
    let complete = complete && !reading.is_interrupted();
    if !complete && head.complete {
        log::warning("interrupted: the caches have seen a part of the trace");
    }
    let head = TraceHead { complete, ..head };
    if study.left_out() > 0 {
        log::warning(&format!("{} requests are too long for any cache", study.left_out()));
    }
    let report = render::CacheReport {
        block_bytes: args.block_bytes,
        reads_only: args.reads_only,
        accesses: study.accesses(),
        footprint_blocks: footprint,
        misses: study.misses(),
    };
    let text =
        if args.json { render::cache_json(&head, &report) } else { render::cache_text(&report) };
    Ok(Outcome { text, complete })
}
