use std::io::{BufRead, BufReader, Write};

use forebay_rt::Runtime;

use super::*;

#[test]
fn names_are_those_of_upsc() {
    let parse = |text: &str| {
        UpsName::parse(text).map(|name| format!("{} {} {}", name.ups, name.host, name.port))
    };
    assert_eq!(parse("rack1@nut.example:3494").unwrap(), "rack1 nut.example 3494");
    assert_eq!(parse("rack1@10.0.0.7").unwrap(), "rack1 10.0.0.7 3493");
    assert_eq!(parse("rack1").unwrap(), "rack1 localhost 3493");
    assert_eq!(parse("r@[::1]:99").unwrap(), "r ::1 99");
    assert_eq!(parse("r@[::1]").unwrap(), "r ::1 3493");
    for bad in ["", "@host", "a@", "a@b:x", "a@b:0", "a b@c", "a@b:70000", "a\n@b"] {
        assert_eq!(parse(bad), None, "{bad}");
    }
}

#[test]
fn words_may_be_quoted() {
    let read = |line: &str| words(line).map(|words| words.join("|"));
    assert_eq!(read(r#"VAR su ups.status "OB LB""#).unwrap(), "VAR|su|ups.status|OB LB");
    assert_eq!(read(r#"  a "b \"c\" \\ d" "" e "#).unwrap(), r#"a|b "c" \ d||e"#);
    assert_eq!(read(r#"a "open"#), None);
    assert_eq!(read(r#"a \"#), None);
}

#[test]
fn answer_is_for_the_question() {
    let value = |line: &str| value_of(line, "su", "ups.status");
    assert_eq!(value(r#"VAR su ups.status "OL CHRG""#).unwrap(), "OL CHRG");
    let refused = NutError::Refused { word: "DATA-STALE".to_owned() };
    assert_eq!(value("ERR DATA-STALE").unwrap_err(), refused);
    let others = [
        r#"VAR other ups.status "OL""#,
        r#"VAR su ups.load "3""#,
        "VAR su ups.status",
        "OK",
        "",
        r#"VAR su ups.status "OL" more"#,
    ];
    for line in others {
        assert!(matches!(value(line), Err(NutError::Malformed { .. })), "{line}");
    }
}

/// A server that plays `script`: an answer for each request; `None` is silence.
fn server(script: Vec<Option<&'static str>>) -> (UpsName, std::thread::JoinHandle<Vec<String>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut script = script.into_iter();
    let play = move || {
        let mut asked = Vec::new();
        while script.len() > 0 {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for line in lines.map_while(Result::ok) {
                asked.push(line);
                match script.next() {
                    Some(Some("")) => break,
                    Some(Some(answer)) => stream.write_all(answer.as_bytes()).unwrap(),
                    // No answer: the client leaves.
                    Some(None) => {}
                    None => break,
                }
            }
        }
        asked
    };
    let name = UpsName::parse(&format!("su@127.0.0.1:{port}")).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a server that shares nothing with the client")]
    let thread = std::thread::spawn(play);
    (name, thread)
}

#[test]
fn supply_is_asked_on_one_connection_until_it_fails() {
    let (name, thread) = server(vec![
        Some("VAR su ups.status \"OL\"\n"),
        Some("VAR su battery.runtime \"610.5\"\n"),
        Some("VAR su ups.status \"OB LB\"\nVAR su"),
        Some(" battery.runtime \"20\"\n"),
        Some("ERR DRIVER-NOT-CONNECTED\n"),
        Some(""), // closes
        Some("VAR su ups.status \"OL\"\n"),
        Some("ERR VAR-NOT-SUPPORTED\n"),
        None,
    ]);
    let source = NutSource::new(name);
    let port = source.name.port;
    let answers = Runtime::real().unwrap().block_on(async move {
        let mut answers = Vec::new();
        for _ in 0..6 {
            answers.push(source.read().await.map_err(|cause| cause.error().to_string()));
        }
        answers
    });
    let reading =
        |status: &str, runtime_secs| Ok(PowerReading { status: status.to_owned(), runtime_secs });
    assert_eq!(answers[0], reading("OL", Some(610)));
    assert_eq!(answers[1], reading("OB LB", Some(20)));
    assert_eq!(answers[2], Err("upsd says DRIVER-NOT-CONNECTED".to_owned()));
    assert!(answers[3].as_ref().unwrap_err().starts_with("upsd at 127.0.0.1:"), "{answers:?}");
    assert_eq!(answers[4], reading("OL", None));
    assert_eq!(answers[5], Err(format!("upsd at 127.0.0.1:{port} does not answer")));
    let asked = thread.join().unwrap();
    assert_eq!(asked[0], "GET VAR su ups.status");
    assert_eq!(asked[1], "GET VAR su battery.runtime");
}
