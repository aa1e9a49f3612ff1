use super::{EXTENDED, Passthrough, ReservationKey, Reservations, SHORT, parse};

/// A report of two controllers, of which the second one holds the reservation.
fn report(header_bytes: usize, entry_bytes: usize, key_at: usize) -> Vec<u8> {
    let mut report = vec![0; header_bytes + 4 * entry_bytes];
    report[5] = 2;
    for (number, key) in [0x11u64, 0x22].into_iter().enumerate() {
        let entry = &mut report[header_bytes + number * entry_bytes..][..entry_bytes];
        entry[2] = number as u8;
        entry[key_at..key_at + 8].copy_from_slice(&key.to_le_bytes());
    }
    report
}

#[test]
fn both_formats_of_a_report_give_keys_and_holder() {
    let expected = Reservations {
        keys: vec![ReservationKey(0x11), ReservationKey(0x22)],
        holder: Some(ReservationKey(0x22)),
    };
    assert_eq!(parse(&report(24, 24, 16), SHORT), expected);
    assert_eq!(parse(&report(64, 64, 8), EXTENDED), expected);
}

#[test]
fn report_that_was_cut_short_gives_what_is_there() {
    let report = report(64, 64, 8);
    assert_eq!(parse(&report[..128], EXTENDED).keys, [ReservationKey(0x11)]);
    assert_eq!(parse(&report[..10], EXTENDED), Reservations::default());
}

#[test]
fn command_has_the_kernels_layout() {
    assert_eq!(size_of::<Passthrough>(), 72);
    assert_eq!(super::NVME_IOCTL_IO_CMD, 0xc048_4e43);
}
