//! `forebay trace pool` from outside: what a server asks of its devices, and the way from a
//! recording to a replay on a volume and on a model.

mod common;

use common::Scratch;

fn json(scratch: &Scratch, words: &str) -> serde_json::Value {
    let text = scratch.run(words);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{words}: {e}: {text}"))
}

fn pause() {
    std::process::Command::new("sleep").arg("0.3").status().unwrap();
}

#[test]
fn log_of_a_served_pool_is_recorded_and_replayed() {
    let scratch = Scratch::with_devices("trace-pool", &["d0", "d1", "l0"]);
    let unserved = "trace pool tank --seconds 1";
    scratch.run("pool create -o txg_timeout=1 tank mirror d0 d1 log l0");
    scratch.refused(unserved, 1, "serve tank");
    scratch.run("volume create -V 16M tank/vol0");
    scratch.run("volume create -V 16M tank/other");
    let server = scratch.server("serve");
    let uri = scratch.uri("tank/vol0");
    let mut recording = scratch.command("trace pool tank --out t.fbt --json");
    let recording = scratch.spawn(recording.stdout(std::process::Stdio::piped()));
    // The recording has begun when its file is there.
    let begun = "for i in $(seq 300); do [ -s t.fbt ] && exit 0; sleep 0.1; done; exit 1";
    let load = "bench nbd URI --overwrite --fua --queue-depth 1 --count 600";
    let mut shell = std::process::Command::new("sh");
    scratch.run(&load.replace("URI", &uri));
    assert!(shell.args(["-c", begun]).current_dir(&scratch.0).status().unwrap().success());
    scratch.run(&load.replace("URI", &uri));
    // Ctrl-C while a poll is under way: the server answers after it.
    server.signal("-STOP");
    pause();
    recording.signal("-INT");
    pause();
    server.signal("-CONT");
    let output = recording.finish();
    assert!(output.status.success());
    let got: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&got["devices"], &got["dropped"]), (&3.into(), &0.into()), "{got}");
    // Each durable write is a frame of the log, and the frames follow one another.
    let log = scratch.0.join("l0").display().to_string();
    let of_log = json(&scratch, &format!("trace summary --json -d {log} t.fbt"));
    let writes = of_log["summary"]["write"]["count"].as_u64().unwrap();
    assert!(writes >= 600, "{of_log}");
    assert!(of_log["summary"]["fua"].as_u64().unwrap() >= 600, "{of_log}");
    let pattern = json(&scratch, &format!("trace iopattern --total --json -d {log} t.fbt"));
    let random = pattern["intervals"][0]["random_pct"].as_u64();
    assert!(random.is_some_and(|random| random <= 5), "{pattern}");
    // The same requests on another volume, and on a model in virtual time.
    let other = scratch.uri("tank/other");
    let words = format!("trace replay --speed max --json --wrap -d {log} t.fbt");
    let replayed = json(&scratch, &format!("{words} --overwrite {other}"));
    assert_eq!(replayed["summary"]["write"]["count"], writes);
    let model = json(&scratch, &format!("{words} sim:ddrdrive-x1"));
    assert_eq!(model["summary"]["write"]["count"], writes);
    assert_eq!(model["left_out"]["beyond_end"], 0);
    let again = json(&scratch, &format!("{words} sim:ddrdrive-x1"));
    assert_eq!(model, again, "virtual time repeats itself");
    assert!(server.interrupt().success());
}

/// The tables of the talk of 2010 for the log device: rows of iopattern, and of the seek histogram.
#[test]
fn tables_of_the_log_device_have_the_form_of_the_talk_for_one_volume_and_for_five() {
    let scratch = Scratch::with_devices("trace-tables", &["d0", "d1", "l0"]);
    scratch.run("pool create -o txg_timeout=1 tank mirror d0 d1 log l0");
    let names = ["v0", "v1", "v2", "v3", "v4"];
    names.iter().for_each(|name| _ = scratch.run(&format!("volume create -V 8M tank/{name}")));
    let server = scratch.server("serve");
    let log = scratch.0.join("l0").display().to_string();
    for volumes in [1, 5] {
        let trace = format!("{volumes}.fbt");
        let recording =
            scratch.spawn(&mut scratch.command(&format!("trace pool tank --out {trace}")));
        let begun =
            format!("for i in $(seq 300); do [ -s {trace} ] && exit 0; sleep 0.1; done; exit 1");
        let load = |name: &str| {
            let uri = scratch.uri(&format!("tank/{name}"));
            let words = format!("bench nbd {uri} --overwrite --fua --queue-depth 1 --count 200");
            scratch.spawn(scratch.command(&words).stdout(std::process::Stdio::null()))
        };
        // The recording has begun when its file is there: these are in it, or the next ones are.
        load(names[0]).finish();
        let mut shell = std::process::Command::new("sh");
        assert!(shell.args(["-c", &begun]).current_dir(&scratch.0).status().unwrap().success());
        let loads: Vec<_> = names[..volumes].iter().map(|name| load(name)).collect();
        loads.into_iter().for_each(|load| assert!(load.finish().status.success()));
        recording.signal("-INT");
        assert!(recording.finish().status.success());
        let text = scratch.run(&format!("trace iopattern --total --at issue -d {log} {trace}"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "%RAN %SEQ  COUNT    MIN    MAX    AVG     KR     KW");
        let row: Vec<u64> = lines[1].split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [random, sequential, count, ..] = row[..] else { panic!("{text}") };
        assert!(lines.len() == 2 && row.len() == 8 && random + sequential == 100, "{text}");
        // Frames of writes that were made at once may be one request of the log.
        assert!(count >= 200 && random <= 5, "one stream, whatever the number of volumes: {text}");
        let seeks = format!("trace seeksize --as bcc --signed --json -d {log} {trace}");
        let seeks = json(&scratch, &seeks);
        let buckets = seeks["total"].as_array().unwrap();
        let counts = || buckets.iter().map(|bucket| bucket["count"].as_u64().unwrap());
        assert_eq!(counts().sum::<u64>(), count - 1, "each request but the first has a distance");
        let zero = buckets.iter().find(|bucket| bucket["sectors"] == 0).unwrap();
        assert!(zero["count"].as_u64().unwrap() * 100 >= 90 * (count - 1), "{seeks}");
    }
    assert!(server.interrupt().success());
}
