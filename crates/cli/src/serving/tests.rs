use super::*;

#[test]
fn uris_are_what_clients_read() {
    assert_eq!(nbd_uri("tcp:127.0.0.1:10809", "tank/vol0"), "nbd://127.0.0.1:10809/tank/vol0");
    assert_eq!(
        nbd_uri("unix:/a dir/nbd.sock", "tank/vol0"),
        "nbd+unix:///tank/vol0?socket=/a%20dir/nbd.sock"
    );
}

#[test]
fn hints_name_the_clients() {
    let lines = connect_hints(&["unix:/s".to_owned(), "tcp:127.0.0.1:1".to_owned()], "p/v");
    let text = lines.join("\n");
    for word in ["nbdinfo", "qemu-img", "fio", "nbdfuse", "nbd://127.0.0.1:1/p/v"] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
    assert!(connect_hints(&[], "p/v").is_empty());
}

#[test]
fn a_file_is_never_replaced_by_a_socket() {
    let path = std::env::temp_dir().join(format!("forebay-file-{}", std::process::id()));
    std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(&path).unwrap();
    assert!(refuse_other_files(&path).is_err());
    std::fs::remove_file(&path).unwrap();
    assert!(refuse_other_files(&path).is_ok());
}
