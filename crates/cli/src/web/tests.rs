use forebay_rt::Runtime;

use super::*;
use crate::http::Request;

const TOKEN: &str = "0123456789abcdef01234567";

fn request(path: &str, headers: &[(&str, &str)]) -> Request {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Request { path: path.to_owned(), query: query.to_owned(), headers: headers.collect() }
}

/// A server without pools.
fn nothing() -> Source {
    Source {
        pools: Box::new(Vec::new),
        drives: Box::new(|_| Default::default()),
        clients: Box::new(|| 3),
    }
}

/// A site without pools on an address, with the token of a file when there is one.
fn site(address: &str, token: Option<Token>) -> Site {
    let source = nothing();
    web_site(State::new(source), Access::new(address.parse().unwrap(), token).unwrap())
}

fn token_in(text: &str, mode: u32) -> Result<Token, crate::failure::Failure> {
    use std::os::unix::fs::PermissionsExt;
    let name = format!("forebay-token-{}-{}", std::process::id(), text.len());
    let path = std::env::temp_dir().join(name);
    std::io::Write::write_all(&mut crate::files::create_private(&path).unwrap(), text.as_bytes())
        .unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    let token = Token::read(&path);
    std::fs::remove_file(&path).unwrap();
    token
}

#[test]
fn data_need_the_token_and_the_page_does_not() {
    Runtime::simulated(1).block_on(async {
        let token = token_in(&format!("{TOKEN}\nmore\n"), 0o600).unwrap();
        let site = site("192.0.2.1:80", Some(token));
        let right = format!("Bearer {TOKEN}");
        for (path, header, status) in [
            ("/", "", "200"),
            ("/state.json", "", "401"),
            ("/state.json", "Bearer 0123456789abcdef01234568", "401"),
            ("/state.json", TOKEN, "401"),
            ("/state.json", &right, "200"),
            ("/state.json?after=5", &right, "200"),
            ("/other", &right, "404"),
        ] {
            let answer = site(&request(path, &[("host", "x.test"), ("authorization", header)]));
            assert!(answer.status.starts_with(status), "{path} {header}: {}", answer.status);
        }
    });
}

#[test]
fn without_a_token_only_names_of_this_machine_are_answered() {
    Runtime::simulated(1).block_on(async {
        let site = site("127.0.0.1:80", None);
        for (host, status) in [
            ("localhost:8426", "200"),
            ("127.0.0.1:8426", "200"),
            ("[::1]:8426", "200"),
            ("evil.test:8426", "421"),
            ("localhost.evil.test", "421"),
            ("", "421"),
        ] {
            let answer = site(&request("/state.json", &[("host", host)]));
            assert!(answer.status.starts_with(status), "{host}: {}", answer.status);
        }
    });
}

#[test]
fn an_address_of_other_machines_needs_a_token_that_is_worth_it() {
    let open = "0.0.0.0:8426".parse().unwrap();
    assert!(Access::new(open, None).err().unwrap().hint.contains("--web-token"));
    assert!(token_in("short\n", 0o600).err().unwrap().message.contains("fewer than 24"));
    let open_to_all = token_in(&format!("{TOKEN}\n\n"), 0o644);
    assert!(open_to_all.err().unwrap().message.contains("every user"));
}

#[test]
fn every_answer_is_fenced_in() {
    Runtime::simulated(1).block_on(async {
        let site = site("127.0.0.1:80", None);
        for path in ["/", "/state.json", "/nothing"] {
            let answer = site(&request(path, &[("host", "localhost")]));
            let header = |name: &str| {
                let found = answer.headers.iter().find(|(header, _)| *header == name);
                found.map(|(_, value)| value.as_str()).unwrap()
            };
            let policy = header("Content-Security-Policy");
            assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
            assert!(!policy.contains("unsafe"));
            assert_eq!(header("X-Content-Type-Options"), "nosniff");
            assert_eq!(header("Cache-Control"), "no-store");
        }
    });
}

#[test]
fn the_document_is_versioned_json() {
    Runtime::simulated(1).block_on(async {
        let source = nothing();
        let document: serde_json::Value =
            serde_json::from_str(&State::new(source).json(0)).unwrap();
        assert_eq!(document["version"], 1);
        assert_eq!(document["server"]["clients"], 3);
        assert_eq!(document["fields"][0], "time");
        assert_eq!(document["pools"], serde_json::json!([]));
    });
}
