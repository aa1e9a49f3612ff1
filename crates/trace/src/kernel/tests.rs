use super::{KernelEvents, LayoutError};
use crate::event::{Event, Flags, Op, Stage};
use forebay_units::Nanos;
use proptest::prelude::*;

/// One page of each of two processors: three durable writes of dd to a loop device, Linux 6.18.
const PAGES: [&[u8]; 2] = [include_bytes!("cpu0.page"), include_bytes!("cpu1.page")];

const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:dev_t dev;\toffset:8;\tsize:4;\tsigned:0;\n\
    \tfield:sector_t sector;\toffset:16;\tsize:8;\tsigned:0;\n\
    \tfield:unsigned int nr_sector;\toffset:24;\tsize:4;\tsigned:0;\n";

/// The `format` files of that kernel, without the fields that are not read.
fn formats() -> [String; 3] {
    let of = |name: &str, id: u16, rwbs: usize, comm: &str| {
        format!(
            "name: {name}\nID: {id}\nformat:\n{COMMON}\
             \tfield:char rwbs[10];\toffset:{rwbs};\tsize:10;\tsigned:0;\n{comm}"
        )
    };
    let comm = |at: usize| format!("\tfield:char comm[16];\toffset:{at};\tsize:16;\tsigned:0;\n");
    [
        of("block_bio_queue", 2097, 28, &comm(38)),
        of("block_rq_issue", 2104, 34, &comm(44)),
        of("block_rq_complete", 2107, 34, ""),
    ]
}

fn reader() -> KernelEvents {
    KernelEvents::new("loop0", &formats(), 1_000).unwrap()
}

fn all(pages: &[&[u8]]) -> (Vec<Event>, KernelEvents) {
    let mut reader = reader();
    pages.iter().for_each(|page| reader.page(page));
    (reader.take_before(Nanos(u64::MAX)), reader)
}

#[test]
fn pages_of_two_processors_are_one_recording() {
    let (events, reader) = all(&PAGES);
    assert_eq!(events.len(), 14 + 16, "as another decoder counts them");
    assert!(events.is_sorted_by_key(|event| event.time));
    let first = events[0];
    assert_eq!((first.time, first.pid), (Nanos(4_110_091_356_712), 16_044));
    assert_eq!((first.op, first.offset_bytes, first.len_bytes), (Op::Write, 0, 4096));
    assert!(first.flags.has(Flags::FUA) && first.flags.has(Flags::SYNC));
    let count = |stage, op, has_data| {
        let is_such = |e: &&Event| e.stage == stage && e.op == op && (e.len_bytes > 0) == has_data;
        events.iter().filter(is_such).count()
    };
    assert_eq!(count(Stage::Queued, Op::Write, true), 3);
    assert_eq!(count(Stage::Queued, Op::Flush, false), 3);
    assert_eq!(count(Stage::Issued, Op::Write, true), 3);
    assert_eq!(count(Stage::Issued, Op::Flush, false), 6);
    assert_eq!(count(Stage::Completed, Op::Write, true), 3);
    assert_eq!(count(Stage::Completed, Op::Flush, false), 6);
    assert_eq!(reader.names().process_name(16_044), Some("dd"));
    assert_eq!(reader.names().devices(), ["loop0"]);
    assert_eq!((reader.names().wall_zero(), reader.lost_pages()), (Some(1_000), 0));
}

#[test]
fn events_behind_the_clock_wait_for_the_other_processors() {
    let mut reader = reader();
    reader.page(PAGES[0]);
    let early = reader.take_before(Nanos(4_110_104_000_000));
    assert_eq!(early.len(), 4);
    reader.page(PAGES[1]);
    let late = reader.take_before(Nanos(u64::MAX));
    assert_eq!(late.len(), 26);
    assert!(late.is_sorted_by_key(|event| event.time));
}

#[test]
fn lost_events_are_noticed() {
    let mut page = PAGES[0].to_vec();
    page[11] |= 0x80;
    let (events, reader) = all(&[&page]);
    assert_eq!((events.len(), reader.lost_pages()), (14, 1));
}

#[test]
fn a_kernel_with_other_fields_is_refused() {
    let mut other = formats();
    other[1] = other[1].replace("nr_sector", "sectors");
    let refused = KernelEvents::new("loop0", &other, 0).err().unwrap();
    assert_eq!(refused, LayoutError { event: "block_rq_issue".to_owned(), field: "nr_sector" });
}

proptest! {
    #[test]
    fn no_page_makes_it_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        changes in prop::collection::vec((0usize..900, any::<u8>()), 1..20),
    ) {
        let mut page = PAGES[0].to_vec();
        for (at, value) in changes {
            page[at] = value;
        }
        let (events, _) = all(&[&bytes, &page]);
        prop_assert!(events.iter().all(|e| e.offset_bytes.checked_add(e.len_bytes).is_some()));
    }
}
