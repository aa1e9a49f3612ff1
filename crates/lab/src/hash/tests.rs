use super::*;
use proptest::prelude::*;

#[test]
fn hash_depends_on_values_and_not_on_field_order() {
    let a: serde_json::Value = serde_json::from_str(r#"{"a":1,"b":[2,3]}"#).expect("JSON");
    let b: serde_json::Value = serde_json::from_str(r#"{"b":[2,3],"a":1}"#).expect("JSON");
    let c: serde_json::Value = serde_json::from_str(r#"{"b":[3,2],"a":1}"#).expect("JSON");
    assert_eq!(of(&a), of(&b));
    assert_ne!(of(&a), of(&c));
    assert_eq!(of(&a).len(), 16);
}

#[test]
fn changed_length_is_not_undone_by_a_changed_byte() {
    assert_ne!(of_bytes(&[0, 0]), of_bytes(&[1, 0, 0]));
}

proptest! {
    #[test]
    fn any_changed_byte_changes_the_hash(
        bytes in prop::collection::vec(any::<u8>(), 1..200),
        at: usize,
        by in 1u8..,
    ) {
        let mut other = bytes.clone();
        let at = at % bytes.len();
        other[at] ^= by;
        prop_assert_ne!(of_bytes(&bytes), of_bytes(&other));
        other.push(0);
        prop_assert_ne!(of_bytes(&bytes), of_bytes(&other));
    }
}
