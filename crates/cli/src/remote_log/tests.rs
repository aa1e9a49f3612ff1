use forebay_rt::Runtime;

use super::*;
use crate::vdevs::parse_vdevs;

fn refusal(word: &'static str) -> String {
    Runtime::real().unwrap().block_on(async move { resolve(word).await }).unwrap_err().message
}

#[test]
fn only_logs_may_be_on_other_hosts() {
    let spec = |words: &str| {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        parse_vdevs(&words).unwrap()
    };
    check_places(&spec("mirror d0 d1 log mirror l0 nbd://10.0.0.2/l1 cache c0")).unwrap();
    for words in ["mirror d0 nbd://h/d1", "d0 cache nbds://h/c", "d0 spare nbd+unix:///s?socket=/s"]
    {
        let failure = check_places(&spec(words)).unwrap_err();
        assert!(failure.message.contains("can be a log device only"), "{}", failure.message);
    }
}

#[test]
fn names_that_another_folder_would_change_are_refused() {
    assert!(refusal("nbd+unix:///l?socket=here/s").contains("the socket's absolute path"));
    let relative = refusal("nbds://h/l?tls-certificates=certs");
    assert!(relative.contains("the folder's absolute path"), "{relative}");
    assert!(refusal("nbd://").contains("names no host"));
    // Port 9 of this machine discards; if nothing does, nothing listens there.
    let unreachable = refusal("nbd://127.0.0.1:9/l");
    assert!(unreachable.starts_with("nbd://127.0.0.1:9/l: open: "), "{unreachable}");
}
