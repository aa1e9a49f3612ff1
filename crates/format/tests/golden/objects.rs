//! A device in an object store.

use forebay_format::objects::{Checkpoint, Entry, Extent, ObjectId, Record};

/// With every kind of record.
pub fn entry() -> Entry {
    let records = vec![
        Record::Add { number: 3, first_block: 65_792, blocks: 4096 },
        Record::Discard { first_block: 300, blocks: 1 << 20 },
        Record::Page { block: 208, bytes: vec![9; 4096] },
        Record::Register { key: 0x1122_3344_5566_7788 },
        Record::Unregister,
        Record::Reserve,
        Record::Preempt { victim: 7 },
        Record::Clear,
    ];
    Entry { position: 258, writer: 77, previous: 76, host: 5, records }
}

/// With two objects, of which one is needed in part.
pub fn checkpoint() -> Checkpoint {
    let (old, new) = (ObjectId { writer: 76, number: 9 }, ObjectId { writer: 77, number: 3 });
    Checkpoint {
        position: 258,
        writer: 77,
        size_bytes: 1 << 40,
        holder: Some(5),
        registrants: vec![(5, 50), (6, 60)],
        pages: vec![(208, vec![9; 4096])],
        objects: vec![(old, 16), (new, 4096)],
        extents: vec![
            Extent { first_block: 500, blocks: 7, object: old, at: 2 },
            Extent { first_block: 65_792, blocks: 4096, object: new, at: 0 },
        ],
    }
}
