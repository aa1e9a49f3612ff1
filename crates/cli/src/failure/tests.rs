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
