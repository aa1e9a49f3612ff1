use super::*;

fn line(words: &str) -> (String, String) {
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let error = Cli::try_parse_from(&words).expect_err("this must not parse");
    usage_line(&error.render().to_string(), &words[1..])
}

#[test]
fn usage_errors_are_one_line_that_points_to_help() {
    for (words, facts, help) in [
        ("forebay pol", "'pol'", "forebay --help"),
        ("forebay pool creat", "'create'", "forebay pool --help"),
        ("forebay pool list --frob", "'--frob'", "forebay pool list --help"),
        ("forebay pool create", "not provided", "forebay pool create --help"),
        ("forebay volume create -V 1X p/v", "not a size", "forebay volume create --help"),
        ("forebay volume create -V 1G v", "POOL/VOL", "forebay volume create --help"),
        ("forebay volume set sync p/v", "property=value", "forebay volume set --help"),
        ("forebay serve --listen 1.2.3.4", "tcp:HOST:PORT", "forebay serve --help"),
        ("forebay pool list -H --json", "cannot be used with", "forebay pool list --help"),
    ] {
        let (line, hint) = line(words);
        assert!(!line.contains('\n'), "{words}: {line}");
        assert!(line.contains(facts), "{words}: {line}");
        assert_eq!(hint, format!("see '{help}'"), "{words}");
        assert!(!line.contains("as a value"), "{words}: {line}");
    }
}
