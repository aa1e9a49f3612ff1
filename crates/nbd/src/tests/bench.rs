use clap::Parser;
use forebay_rt::Runtime;
use proptest::prelude::*;

use super::*;
use crate::bench::args::parse_seconds;
use crate::bench::{
    BenchArgs, BenchError, BenchReport, Cancellation, DataFound, RESULT_FORMAT, TimeError, run_on,
};
use crate::latency::Latencies;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    bench: BenchArgs,
}

/// Arguments of a load that may write.
fn args(words: &str) -> BenchArgs {
    careful_args(&format!("--overwrite {words}"))
}

/// Arguments of a load that may write only when `words` allow it.
fn careful_args(words: &str) -> BenchArgs {
    let line = format!("bench nbd://unused {words}");
    Command::try_parse_from(line.split_whitespace()).unwrap_or_else(|e| panic!("{e}")).bench
}

async fn run_over(
    server: &Rc<Server>,
    args: BenchArgs,
    cancellation: &Cancellation,
) -> BenchReport {
    let mut clients = Vec::new();
    for _ in 0..args.connections {
        clients.push(Rc::new(connect(server).await));
    }
    run_on(args, clients, cancellation).await.unwrap()
}

#[test]
fn run_does_what_its_arguments_say() {
    Runtime::simulated(1).block_on(async {
        let device = CachedDevice::new(1 << 20);
        let server = server_of(device.clone(), Limits::default());
        let cancellation = Cancellation::new();
        let words = "--count 300 --queue-depth 4 --connections 3 --fua --flush-each";
        let report = run_over(&server, args(words), &cancellation).await;
        assert_eq!((report.requests, device.writes_begun.get()), (300, 300));
        assert_eq!(device.flushes_begun.get(), 300);
        assert_eq!(report.format, RESULT_FORMAT);
        let writes = report.writes.unwrap();
        assert!(writes.min_us <= writes.p50_us && writes.p50_us <= writes.p9999_us);
        assert!(writes.p9999_us <= writes.max_us && report.reads.is_none());
        assert!(report.flushes.unwrap().mean_us < writes.mean_us);
        assert!(*device.durable.borrow() == *device.seen.borrow());
        let json = report.to_json();
        let again: BenchReport = serde_json::from_str(&json).unwrap();
        assert_eq!(again.requests, 300);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(json["writes"]["p99.99_us"].is_number());

        let words = "--seconds 2 --read-percent 70 --block-size 64K --queue-depth 2";
        let begun = rt::now();
        let report = run_over(&server, args(words), &cancellation).await;
        assert!((2.0..2.1).contains(&rt::now().since(begun).as_secs_f64()));
        let share = report.reads.unwrap().count as f64 / report.requests as f64;
        assert!((0.6..0.8).contains(&share), "{share} of the requests were reads");
        let expected = report.requests as f64 * 65536.0 / report.seconds / 1e6;
        assert!((report.mb_per_second - expected).abs() < 0.01);
        // Little's law with two requests in flight.
        let busy =
            report.reads.unwrap().mean_us * share + report.writes.unwrap().mean_us * (1.0 - share);
        assert!((report.iops * busy / 1e6 - 2.0).abs() < 0.1);
    });
}

/// The export, range and data of the refusal that `words` meet.
async fn refused_overwrite(client: &Rc<Client>, words: &str) -> (String, u64, DataFound) {
    let outcome = run_on(careful_args(words), vec![client.clone()], &Cancellation::new()).await;
    match outcome {
        Err(BenchError::WouldOverwrite { export, len_bytes, found }) => (export, len_bytes, found),
        other => panic!("{words}: {other:?}"),
    }
}

#[test]
fn load_writes_nothing_without_overwrite() {
    Runtime::simulated(5).block_on(async {
        let device = CachedDevice::new(1 << 20);
        let server = server_of(device.clone(), Limits::default());
        let client = Rc::new(connect(&server).await);
        let refusal = refused_overwrite(&client, "--count 9").await;
        let empty = DataFound::Exactly { data_bytes: 0 };
        assert_eq!(refusal, ("test".to_owned(), 1 << 20, empty));

        client.write(64 << 10, pattern(8192, 1), true).await.unwrap();
        let before = device.seen.borrow().clone();
        for (words, len_bytes, data_bytes) in [
            ("--count 9", 1 << 20, 8192),
            ("--count 9 --read-percent 99", 1 << 20, 8192),
            ("--count 9 --span 68K", 68 << 10, 4096),
            ("--count 9 --span 64K --fua", 64 << 10, 0),
        ] {
            let (_, range, found) = refused_overwrite(&client, words).await;
            assert_eq!((range, found), (len_bytes, DataFound::Exactly { data_bytes }), "{words}");
        }
        assert_eq!(device.writes_begun.get(), 1);
        assert!(*device.seen.borrow() == before);

        let reads = careful_args("--count 9 --read-percent 100");
        let report = run_on(reads, vec![client.clone()], &Cancellation::new()).await.unwrap();
        assert_eq!((report.requests, device.writes_begun.get()), (9, 1));
    });
}

#[test]
fn refusal_to_overwrite_says_what_the_server_does_not_report() {
    Runtime::simulated(6).block_on(async {
        let server = server_of(CachedDevice::new(1 << 20), Limits::default());
        let client = connect_simple(&server).await;
        let (_, _, found) = refused_overwrite(&Rc::new(client), "--count 9").await;
        assert_eq!(found, DataFound::NotReported);
    });
    let data = |found| {
        let export = "nbd://host/tank/vol0".to_owned();
        BenchError::WouldOverwrite { export, len_bytes: 8 << 30, found }.to_string()
    };
    assert_eq!(
        data(DataFound::Exactly { data_bytes: 3 << 20 }),
        "writes would destroy the first 8G of nbd://host/tank/vol0 (3M of data there now): give \
         --overwrite to allow them, or --read-percent 100 to only read"
    );
}

#[test]
fn times_take_fractions_and_units() {
    for (words, seconds) in
        [("0.25", 0.25), ("10", 10.0), ("500ms", 0.5), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0)]
    {
        let args = args(&format!("--seconds {words} --warmup-seconds {words}"));
        assert_eq!((args.seconds, args.warmup_seconds), (seconds, seconds), "{words}");
    }
    for bad in ["", "s", "1x", "-1", "1..2", "nan", "inf", "1e9"] {
        assert_eq!(parse_seconds(bad), Err(TimeError::Malformed(bad.to_owned())));
        let line = ["bench", "nbd://unused", &format!("--seconds={bad}")].map(str::to_owned);
        assert!(Command::try_parse_from(line).is_err(), "{bad}");
    }
    assert_eq!(parse_seconds("9999h"), Err(TimeError::TooLong("9999h".to_owned())));
    Runtime::simulated(7).block_on(async {
        let server = server_of(CachedDevice::new(1 << 20), Limits::default());
        let begun = rt::now();
        let words = "--seconds 0.25 --warmup-seconds 250ms";
        let report = run_over(&server, args(words), &Cancellation::new()).await;
        assert!((0.5..0.6).contains(&rt::now().since(begun).as_secs_f64()));
        assert!((0.25..0.35).contains(&report.seconds), "{}", report.seconds);
    });
}

#[test]
fn a_rate_spreads_requests_over_the_time() {
    Runtime::simulated(8).block_on(async {
        let server = server_of(CachedDevice::new(1 << 20), Limits::default());
        let run = async |words: &str| run_over(&server, args(words), &Cancellation::new()).await;
        let report = run("--count 200 --rate 100 --queue-depth 8 --connections 2").await;
        assert_eq!(report.requests, 200);
        assert!((1.9..2.1).contains(&report.seconds), "{}", report.seconds);
        // A time that ends the run also ends the wait for a turn.
        let report = run("--seconds 0.5 --rate 1 --queue-depth 8").await;
        assert_eq!(report.requests, 1);
        assert!((0.5..0.6).contains(&report.seconds), "{}", report.seconds);
    });
}

#[test]
fn sequential_writes_cover_each_part_of_the_export_in_order() {
    Runtime::simulated(2).block_on(async {
        let device = CachedDevice::new(1 << 20);
        let server = server_of(device.clone(), Limits::default());
        let words = "--pattern sequential --count 256 --connections 2 --queue-depth 8";
        run_over(&server, args(words), &Cancellation::new()).await;
        // 256 blocks of 4 KiB fill the device, if no block is written twice.
        assert!(device.stored.borrow().iter().filter(|s| **s).count() > 2048 * 9 / 10);
        let seen = device.seen.borrow();
        assert!(seen[..4096] != seen[4096..8192], "the same data twice in a row");
    });
}

#[test]
fn cancelled_run_reports_what_it_measured() {
    Runtime::simulated(3).block_on(async {
        let server = server_of(CachedDevice::new(1 << 20), Limits::default());
        let cancellation = Cancellation::new();
        let cancel = cancellation.clone();
        rt::spawn(async move {
            rt::sleep(Nanos::from_secs(1)).await;
            cancel.cancel();
        });
        let report = run_over(&server, args("--seconds 1000"), &cancellation).await;
        assert!(report.interrupted && report.requests > 0);
        assert!((0.9..1.2).contains(&report.seconds), "{}", report.seconds);
    });
}

#[test]
fn run_that_cannot_work_is_refused() {
    Runtime::simulated(4).block_on(async {
        let device = CachedDevice::new(1 << 20);
        let server = server_of(device.clone(), Limits::default());
        let client = Rc::new(connect(&server).await);
        let cancellation = Cancellation::new();
        let run = async |words: &str| {
            run_on(args(words), vec![client.clone()], &cancellation).await.unwrap_err()
        };
        for words in ["--block-size 2M", "--block-size 0", "--span 1K"] {
            let error = run(words).await;
            assert!(matches!(error, BenchError::BlocksDoNotFit { .. }), "{words}: {error}");
        }
        let error = run("--block-size 1000").await;
        assert!(matches!(error, BenchError::MisalignedBlocks { export_block_bytes: 512 }));
        for words in ["--seconds 0", "--count 0"] {
            let error = run(words).await;
            assert!(matches!(error, BenchError::EmptyRun), "{words}: {error}");
        }
        *device.fail_next.borrow_mut() = Some(ErrorKind::Gone);
        let error = run("--count 50").await;
        let BenchError::Device(error) = error else { panic!("{error}") };
        assert_eq!((error.operation, error.len_bytes), (Operation::Write, 4096));
    });
}

proptest! {
    #[test]
    fn percentiles_match_the_sorted_list(
        mut values in prop::collection::vec(
            (0u32..43).prop_flat_map(|bits| 0..(1u64 << bits) + 1),
            1..300,
        ),
        percent in 0.0f64..=100.0,
        split in 0usize..300,
    ) {
        let (mut whole, mut other) = (Latencies::new(), Latencies::new());
        for (i, value) in values.iter().enumerate() {
            if i < split { whole.add(Nanos(*value)) } else { other.add(Nanos(*value)) }
        }
        whole.merge(&other);
        values.sort_unstable();
        let rank = (percent / 100.0 * values.len() as f64).ceil().max(1.0) as usize;
        let exact = values[rank - 1];
        let got = whole.percentile(percent).0;
        prop_assert!(got >= exact && got <= exact + exact / 128, "{} for {}", got, exact);
        prop_assert_eq!(whole.max().0, *values.last().unwrap());
        prop_assert_eq!(whole.min().0, values[0]);
        prop_assert_eq!(whole.count(), values.len() as u64);
        let sum: u128 = values.iter().map(|v| u128::from(*v)).sum();
        prop_assert_eq!(whole.mean().0, (sum / values.len() as u128) as u64);
    }
}
