use super::*;

#[test]
fn messages_are_one_line_without_error_numbers() {
    let message = "a: No such file (os error 2);\n  b (Busy (os error 16)): c";
    assert_eq!(one_line(message), "a: No such file; b (Busy): c");
    assert_eq!(one_line("cut (os error "), "cut (os error");
}

#[test]
fn failure_is_one_line_for_people_and_fields_for_programs() {
    let failure = Failure::new(ErrorCode::PoolNotFound, "no pool named 'tank' is known")
        .with_hint("'forebay pool list' shows the known pools");
    assert_eq!(
        failure.line(),
        "no pool named 'tank' is known; 'forebay pool list' shows the known pools"
    );
    let json = serde_json::to_string(&failure).unwrap();
    assert_eq!(
        json,
        "{\"code\":\"pool_not_found\",\"message\":\"no pool named 'tank' is known\",\
         \"hint\":\"'forebay pool list' shows the known pools\"}"
    );
    assert_eq!(serde_json::from_str::<Failure>(&json).unwrap(), failure);
    assert_eq!((failure.exit_code(), Failure::usage("x").exit_code()), (1, 2));
}

#[test]
fn codes_come_from_the_kind_of_a_system_error() {
    use std::io::{Error, ErrorKind};
    let code = |kind: ErrorKind| ErrorCode::of_io(&Error::from(kind));
    assert_eq!(code(ErrorKind::StorageFull), ErrorCode::NoSpace);
    assert_eq!(code(ErrorKind::PermissionDenied), ErrorCode::PermissionDenied);
    assert_eq!(code(ErrorKind::TimedOut), ErrorCode::Io);
}

/// Rows `| code | meaning |` of the enum `name` in `source`, from its variants and comments.
fn rows(source: &str, name: &str) -> Vec<String> {
    let (_, body) = source.split_once(&format!("pub enum {name} {{\n")).expect("the enum");
    let (body, _) = body.split_once("\n}").expect("its end");
    let mut rows = Vec::new();
    let mut meaning = String::new();
    for line in body.lines().map(str::trim) {
        match line.strip_prefix("/// ") {
            Some(comment) => meaning.push_str(&format!("{comment} ")),
            None => {
                let mut snake = String::new();
                for letter in line.trim_end_matches(',').chars() {
                    if letter.is_uppercase() && !snake.is_empty() {
                        snake.push('_');
                    }
                    snake.extend(letter.to_lowercase());
                }
                rows.push(format!("| `{snake}` | {} |", meaning.trim_end_matches(['.', ' '])));
                meaning.clear();
            }
        }
    }
    rows
}

#[test]
fn codes_are_listed_in_the_page_on_the_control_socket() {
    let page = include_str!("../../../../docs/control.md");
    let tables = [
        ("| code | what went wrong |", rows(include_str!("../failure.rs"), "ErrorCode")),
        (
            "| condition | what is wrong |",
            rows(include_str!("../explain/condition.rs"), "ConditionCode"),
        ),
    ];
    for (head, rows) in tables {
        let (_, after) = page.split_once(&format!("{head}\n|---|---|\n")).expect("the table");
        let listed = after.lines().take_while(|line| line.starts_with('|'));
        assert_eq!(listed.collect::<Vec<_>>(), rows, "the table under {head}");
    }
}
