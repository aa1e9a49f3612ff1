use super::limits::{LIMITS, Unit};
use super::*;

fn parse(text: &str) -> Result<ServiceConfig, Failure> {
    ServiceConfig::parse(Path::new("/etc/f.toml"), text)
}

fn refused(text: &str) -> String {
    let failure = parse(text).expect_err(text);
    assert_eq!(failure.code, ErrorCode::ServiceConfig);
    failure.message
}

#[test]
fn every_key_reaches_its_setting() {
    let text = "\
        listen = ['unix:/run/s', 'tcp:127.0.0.1:1']\npools = ['tank', 'dozer']\n\
        directories = ['/dev/disk/by-id']\nmetrics = '[::1]:9816'\n\
        [tls]\ncert = '/c'\nkey = '/k'\nca = '/a'\n\
        [allow]\nhost = ['tank/*']\n";
    let config = parse(text).unwrap();
    let addresses: Vec<String> = config.listen.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["unix:/run/s", "tcp:127.0.0.1:1"]);
    assert_eq!(config.pools, ["tank", "dozer"]);
    assert_eq!(config.directories, [PathBuf::from("/dev/disk/by-id")]);
    assert_eq!(config.metrics, Some("[::1]:9816".parse().unwrap()));
    assert_eq!(config.security.tls_cert, Some("/c".into()));
    assert_eq!(config.security.tls_key, Some("/k".into()));
    assert_eq!(config.security.tls_ca, Some("/a".into()));
    let list = config.allow.unwrap();
    assert!(list.allows(Some("host"), "tank/v") && !list.allows(Some("host"), "dozer/v"));
    let text = "[tls]\ncert = '/c'\nkey = '/k'\nca = '/a'\nallow = '/l'\n";
    assert_eq!(parse(text).unwrap().security.tls_allow, Some("/l".into()));
    assert!(parse("plaintext = true").unwrap().security.plaintext);
    let web = parse("web = '127.0.0.1:8426'\nweb_token = '/t'").unwrap().web;
    assert_eq!(web.address, Some("127.0.0.1:8426".parse().unwrap()));
    assert_eq!(web.token, Some("/t".into()));
    assert!(refused("web = 'here'").contains("web: expected an address and a port"));
    assert_eq!(parse("").unwrap().limits, Limits::default());
}

#[test]
fn every_limit_takes_its_range_and_no_more() {
    // Greater than what longer requests need, and less than the greatest value.
    let room = "connection_bytes = '1G'\ntotal_bytes = '4G'\n";
    for limit in &LIMITS {
        let room = if limit.key == "request_bytes" { room } else { "" };
        let with = |value: u64| format!("[limits]\n{room}{} = {value}\n", limit.key);
        let least = parse(&with(limit.min));
        match limit.key {
            "connection_bytes" | "total_bytes" => {
                assert!(least.unwrap_err().message.contains("which requests of 32M need"));
            }
            _ => assert_eq!((limit.get)(&least.unwrap().limits), limit.min),
        }
        let most = parse(&with(limit.max)).unwrap();
        assert_eq!((limit.get)(&most.limits), limit.max, "{}", limit.key);
        for beyond in [limit.min - 1, limit.max + 1] {
            let message = refused(&with(beyond));
            assert!(message.contains(&format!("limits.{}: expected", limit.key)), "{message}");
        }
        let size = parse(&format!("[limits]\n{room}{} = '128M'\n", limit.key));
        match limit.unit {
            Unit::Bytes if limit.max >= 128 << 20 && limit.key != "total_bytes" => {
                assert_eq!((limit.get)(&size.unwrap().limits), 128 << 20, "{}", limit.key);
            }
            _ if limit.key == "total_bytes" => assert!(size.is_ok()),
            _ => assert!(size.unwrap_err().message.contains("expected"), "{}", limit.key),
        }
    }
}

#[test]
fn refusals_name_file_and_line_and_what_was_expected() {
    let tls = "[tls]\ncert = '/c'\nkey = '/k'\n";
    for (text, line, expected) in [
        ("\nlisten = ['tcp:1']", 2, "write tcp:HOST:PORT"),
        ("listen = [\n  'unix:/s',\n  'unix:s',\n]", 3, "an absolute path, not 's'"),
        ("listen = '/s'", 1, "expected a sequence"),
        ("listen = [\n'unix:/s',\n'unix:/s']", 3, "this address is named twice"),
        ("lisen = []", 1, "expected one of `listen`, `plaintext`, `pools`"),
        ("\nmetrics = 'localhost'", 2, "an address and a port such as 127.0.0.1:9816"),
        ("directories = ['dev']", 1, "expected an absolute path, not 'dev'"),
        ("# pools\n\n[tls]\ncart = '/c'", 4, "expected one of `cert`, `key`, `ca`, `allow`"),
        ("[tls]\ncert = 'c'", 2, "expected an absolute path, not 'c'"),
        ("[tls]\ncert = '/c'", 2, "tls.cert needs tls.key"),
        ("[tls]\nkey = '/k'", 2, "tls.key needs tls.cert"),
        ("[tls]\nca = '/a'", 2, "tls.ca needs tls.cert"),
        (&format!("{tls}allow = '/l'"), 4, "tls.allow needs tls.ca"),
        (&format!("{tls}[allow]\nhost = []"), 4, "[allow] needs tls.ca"),
        (
            &format!("{tls}ca='/a'\nallow='/l'\n[allow]\nh = []"),
            6,
            "[allow] or tls.allow, not both",
        ),
        (&format!("plaintext = true\n{tls}"), 1, "plaintext = true or tls.cert, not both"),
        ("[limits]\nconnections = 'many'", 2, "expected a whole number"),
        ("[limits]\nconnections = 1", 2, "limits.connections: expected a whole number from 8"),
        ("[limits]\nconnections = -9", 2, "expected a whole number"),
        ("[limits]\nstall_seconds = 0", 2, "limits.stall_seconds: expected seconds from 1 to 3600"),
        ("[limits]\nrequest_bytes = '1K'", 2, "expected a size from 4K to 256M"),
        ("[limits]\nconections = 9", 2, "unknown limit 'conections', expected connections"),
        ("pools = ['a'\nlisten = []", 2, ""),
    ] {
        let message = refused(text);
        assert!(message.starts_with(&format!("/etc/f.toml, line {line}")), "{text}\n{message}");
        assert!(message.contains(expected), "{expected} is not in {message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn command_line_wins_over_the_file_key_by_key() {
    let text = "listen = ['unix:/s']\npools = ['a']\ndirectories = ['/d']\n[tls]\ncert = '/c'\n\
        key = '/k'\nca = '/a'\n[allow]\nhost = []";
    let mut config = parse(text).unwrap();
    config.override_with(&[], &SecurityArgs::default(), &[], &[]).unwrap();
    assert_eq!((config.pools.len(), config.listen.len()), (1, 1));
    let cert = SecurityArgs { tls_cert: Some("/c2".into()), ..SecurityArgs::default() };
    let address = ListenAddress::Unix("/t".into());
    config
        .override_with(std::slice::from_ref(&address), &cert, &["b".to_owned()], &["/e".into()])
        .unwrap();
    assert_eq!(config.listen, [address]);
    assert_eq!(config.pools, ["b"]);
    assert_eq!(config.directories, [PathBuf::from("/e")]);
    assert_eq!(config.security.tls_cert, Some("/c2".into()));
    // A certificate given by hand does not let in clients that the file keeps out.
    assert_eq!(config.security.tls_ca, Some("/a".into()));
    assert!(config.allow.is_some());
    let list = SecurityArgs { tls_allow: Some("/l".into()), ..SecurityArgs::default() };
    config.override_with(&[], &list, &[], &[]).unwrap();
    assert!(config.allow.is_none());
    let plaintext = SecurityArgs { plaintext: true, ..SecurityArgs::default() };
    let both = config.override_with(&[], &plaintext, &[], &[]).unwrap_err();
    assert!(both.message.contains("exclude each other"), "{}", both.message);
}

#[test]
fn document_names_every_key_and_its_default() {
    let page = include_str!("../../../../docs/service.md");
    for key in [
        "listen",
        "metrics",
        "vhost_user",
        "plaintext",
        "pools",
        "directories",
        "tls.cert",
        "tls.key",
        "tls.ca",
    ] {
        assert!(page.contains(&format!("| `{key}` |")), "{key}");
    }
    for key in ["tls.allow", "[allow]"] {
        assert!(page.contains(&format!("| `{key}` |")), "{key}");
    }
    for limit in &LIMITS {
        let default = (limit.get)(&Limits::default());
        let default = match limit.unit {
            Unit::Bytes => forebay_units::format_bytes(default),
            Unit::Count | Unit::Seconds => default.to_string(),
        };
        let row = format!("| `limits.{}` | {default} |", limit.key);
        assert!(page.contains(&row), "no row '{row}'");
    }
}

#[test]
fn metrics_and_web_page_have_addresses_of_their_own() {
    let shared = [
        "metrics = '127.0.0.1:1'\nweb = '127.0.0.1:1'",
        "metrics = '0.0.0.0:1'\nweb = '127.0.0.1:1'",
        "web = '127.0.0.1:1'\nmetrics = '[::]:1'",
        "listen = ['tcp:127.0.0.1:1']\nweb = '127.0.0.1:1'",
        "listen = ['tcp:0.0.0.0:1']\nmetrics = '127.0.0.1:1'",
    ];
    for text in shared {
        assert!(refused(text).contains("has this address already"), "{}", refused(text));
    }
    let message = refused(shared[0]);
    assert!(message.contains("line 2") && message.contains("web: metrics has"), "{message}");
    parse("metrics = '127.0.0.1:0'\nweb = '127.0.0.1:0'").unwrap();
    parse("metrics = '127.0.0.1:1'\nweb = '127.0.0.2:1'").unwrap();
    parse("metrics = '[::1]:1'\nweb = '0.0.0.0:1'").unwrap();
}
