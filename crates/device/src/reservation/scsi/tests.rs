use super::{ReservationKey, parse_holder, parse_keys, sense_key};

#[test]
fn keys_are_as_many_as_the_header_says() {
    let mut answer = vec![0, 0, 0, 7, 0, 0, 0, 16];
    answer.extend([0, 0, 0, 0, 0, 0, 1, 2]);
    answer.extend([0x80, 0, 0, 0, 0, 0, 0, 3]);
    answer.extend([9; 16]);
    let keys = [ReservationKey(0x102), ReservationKey(0x8000_0000_0000_0003)];
    assert_eq!(parse_keys(&answer), keys);
    // An answer that was cut short, and one that holds nothing.
    assert_eq!(parse_keys(&answer[..20]), keys[..1]);
    assert_eq!(parse_keys(&answer[..3]), []);
    assert_eq!(parse_keys(&[0; 64]), []);
}

#[test]
fn holder_is_there_only_with_a_reservation() {
    let mut answer = vec![0, 0, 0, 7, 0, 0, 0, 16];
    answer.extend([0, 0, 0, 0, 0, 0, 1, 2]);
    // Scope and type: logical unit, Write Exclusive - Registrants Only.
    answer.extend([0, 0, 0, 0, 0, 5, 0, 0]);
    assert_eq!(parse_holder(&answer), Some(ReservationKey(0x102)));
    assert_eq!(parse_holder(&[0, 0, 0, 7, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]), None);
}

#[test]
fn sense_key_is_found_in_both_formats() {
    assert_eq!(sense_key(&[0x70, 0, 0x05, 0]), Some(5));
    assert_eq!(sense_key(&[0xf0, 0, 0xe6, 0]), Some(6));
    assert_eq!(sense_key(&[0x72, 0x05, 0x20, 0]), Some(5));
    assert_eq!(sense_key(&[0x00, 0, 0]), None);
    assert_eq!(sense_key(&[]), None);
}
