use super::one_line;

#[test]
fn messages_are_one_line_without_numbers_of_errors() {
    let message = "a: No such file (os error 2);\n  b (Busy (os error 16)): c";
    assert_eq!(one_line(message), "a: No such file; b (Busy): c");
    assert_eq!(one_line("cut (os error "), "cut (os error");
}
