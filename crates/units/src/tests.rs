use super::*;

#[test]
fn sizes_are_parsed() {
    assert_eq!(parse_bytes("4096"), Ok(4096));
    assert_eq!(parse_bytes("8G"), Ok(8 << 30));
    assert_eq!(parse_bytes("1.5k"), Ok(1536));
    assert_eq!(parse_bytes("64MiB"), Ok(64 << 20));
    for bad in ["", "G", "-1", "1x", "1..2", "99999999999E", "nan"] {
        assert!(parse_bytes(bad).is_err(), "{bad:?} was taken for a size");
    }
    let flaw = |text| parse_bytes(text).unwrap_err().flaw;
    assert_eq!(
        [flaw("8Q"), flaw("16E"), flaw("16.5E")],
        [SizeFlaw::NotASize, SizeFlaw::TooLarge, SizeFlaw::TooLarge]
    );
}

#[test]
fn sizes_are_formatted_like_zpool() {
    assert_eq!(format_bytes(0), "0B");
    assert_eq!(format_bytes(512), "512B");
    assert_eq!(format_bytes(8 << 30), "8G");
    assert_eq!(format_bytes(7_680 << 20), "7.50G");
    assert_eq!(format_bytes((75 << 20) + 1), "75.0M");
}

#[test]
fn address_keeps_segment_and_block() {
    let addr = BlockAddr::new(SegmentId(0xf_ffff), 0xf_fffe);
    assert_eq!((addr.segment(), addr.block()), (SegmentId(0xf_ffff), 0xf_fffe));
    assert_eq!(BlockAddr::from_raw(addr.raw()), addr);
    assert_eq!(addr.plus(1).block(), 0xf_ffff);
}

#[test]
#[should_panic(expected = "out of range")]
fn address_past_segment_end_panics() {
    let _ = BlockAddr::new(SegmentId(0), 0xf_ffff).plus(1);
}
