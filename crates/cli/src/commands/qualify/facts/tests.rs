use super::*;

#[test]
fn chosen_scheduler_is_the_one_in_brackets() {
    assert_eq!(chosen("none [mq-deadline] kyber"), "mq-deadline");
    assert_eq!(chosen("none"), "none");
}
