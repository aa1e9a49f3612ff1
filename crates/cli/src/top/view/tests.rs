use forebay_pool::status::{
    EventKind, EventRecord, IoCounts, OpCount, PoolStats, Pulse, Timings, VdevKind,
};
use forebay_units::{Layout as GroupLayout, Nanos};
use ratatui::backend::TestBackend;

use super::*;
use crate::control::StatusReport;
use crate::explain::{Advice, ConditionCode};

/// The screen as lines of text.
fn screen(track: &Track, place: (usize, usize), columns: u16, rows: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(frame, track, place)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y: u16| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..rows).map(line).collect::<Vec<String>>().join("\n")
}

fn device(name: &str, state: Health) -> VdevStatus {
    VdevStatus {
        name: name.to_owned(),
        kind: VdevKind::Device,
        state,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        note: None,
        protection: None,
        memory: None,
        objects: None,
        size_bytes: 1 << 30,
        space: None,
        io: IoCounts::default(),
        children: Vec::new(),
    }
}

fn stats(second: u64) -> PoolStats {
    let text = serde_json::json!({
        "version": 1, "name": "tank", "uptime_secs": 3600 + second,
        "since_import": forebay_pool::status::Traffic::default(),
        "since_creation": forebay_pool::status::Traffic::default(),
        "write_amplification": 1.5, "write_amplification_with_log": 2.5,
        "segments": {"free": 30, "open": 10, "full": 60, "cleaned": 0, "live_share": 0.5,
            "segment_bytes": 4096},
        "map_memory_bytes": 0, "dirty_bytes": 1 << 20, "dirty_limit_bytes": 4 << 20,
        "log_used_bytes": 95, "log_capacity_bytes": 100,
        "fua_latency": forebay_pool::status::Latency::default(),
        "flush_latency": forebay_pool::status::Latency::default(),
        "read_latency": forebay_pool::status::Latency::default(),
        "devices": {"/dev/d1": {"reads": 7 * second, "read_bytes": 0, "writes": 2 * second,
            "write_bytes": 0, "sequential_writes": 0, "flushes": 0, "discards": 0,
            "discard_bytes": 0}},
        "last_import": forebay_pool::status::ImportReport::default()
    });
    serde_json::from_value(text).unwrap()
}

fn moment(second: u64) -> Moment {
    let mut group = device("mirror-0", Health::Degraded);
    group.kind = VdevKind::Group(GroupLayout::Mirror);
    group.children = vec![
        device("/dev/disk/by-id/wwn-0x5000c500a1b2c3d4-part1", Health::Online),
        device("/dev/d1", Health::Faulted),
    ];
    let pool = serde_json::json!({"name": "tank", "guid": 1, "state": "DEGRADED", "scan": null,
        "groups": [], "logs": [], "lost": [], "lost_count": 0, "txg": 1});
    let mut pool: forebay_pool::status::PoolStatus = serde_json::from_value(pool).unwrap();
    pool.groups = vec![group];
    let summary = serde_json::json!({"name": "tank", "guid": 1, "size_bytes": 100,
        "alloc_bytes": 40, "free_bytes": 60, "health": "DEGRADED"});
    let mut pulse = Pulse::default();
    pulse.traffic.writes = OpCount { count: 1000 * second, bytes: second << 22 };
    pulse.traffic.media.data = second << 22;
    pulse.traffic.media.cleaning = second << 20;
    pulse.latencies[0] = Timings(vec![(92_000, 99 * second), (3_100_000, second)]);
    let advice = Advice {
        condition: ConditionCode::DevicesFailed,
        status: "A device has failed.".to_owned(),
        action: "Replace it.".to_owned(),
    };
    Moment {
        status: StatusReport { pool, advice, drives: Default::default() },
        summary: serde_json::from_value(summary).unwrap(),
        stats: stats(second),
        pulse,
        events: Vec::new(),
    }
}

fn track() -> Track {
    let mut track = Track::default();
    for second in 1..=4 {
        track.add(moment(second), Nanos::from_secs(second));
    }
    track
}

#[test]
fn eighty_columns_have_rates_latencies_levels_and_the_failed_device_first() {
    let text = screen(&track(), (0, 1), 80, 24);
    for part in [
        "tank DEGRADED",
        "A device has failed. Replace it.",
        "write      1000/s       4M/s",
        "durable     92 µs     92 µs   3.10 ms   3.10 ms",
        "95% of 100B",
        "25% of 4M",
        "cleaning 20%, amplified 1.50, 30% free",
        "no event since the import",
        "q: leave",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let lines: Vec<&str> = text.lines().collect();
    let at = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap();
    assert!(at("/dev/d1") < at("c3d4-part1"), "{text}");
    assert!(lines[at("/dev/d1")].contains("FAULTED"), "{text}");
    assert!(lines[at("/dev/d1")].contains("      7        2"), "{text}");
    assert!(!text.contains("Tab"));
}

#[test]
fn forty_columns_have_the_names_of_devices_with_their_states() {
    let text = screen(&track(), (0, 1), 40, 24);
    let line = |part: &str| text.lines().find(|line| line.contains(part)).unwrap_or(&text);
    assert!(line("/dev/d1").contains("FAULTED"), "{text}");
    assert!(line("d4-part1").contains("ONLINE"), "{text}");
    assert!(line("/dev/d1").contains("      7"), "{text}");
}

#[test]
fn wide_screens_have_a_chart_and_events_and_small_ones_do_not_fail() {
    let mut track = track();
    let mut later = moment(5);
    later.events = vec![EventRecord {
        pool: "tank".to_owned(),
        guid: 1,
        sequence: 3,
        time_secs: 0,
        event: EventKind::TakenOut,
        device: None,
        text: "/dev/d1 was taken out".to_owned(),
    }];
    track.add(later, Nanos::from_secs(5));
    assert_eq!(track.last_event(), 3);
    let text = screen(&track, (1, 3), 140, 40);
    for part in [
        "three minutes",
        "30% of segments free",
        "/dev/d1 was taken out",
        "tank (2 of 3)",
        "Tab: next pool",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    for (columns, rows) in [(1, 1), (20, 5), (79, 10), (300, 100)] {
        screen(&track, (0, 1), columns, rows);
    }
    assert!(screen(&Track::default(), (0, 1), 80, 24).contains("waiting for the server"));
}

#[test]
fn latencies_are_those_of_ten_seconds_and_an_import_begins_anew() {
    let mut track = Track::default();
    for second in 1..=30 {
        track.add(moment(second), Nanos::from_secs(second));
    }
    assert_eq!(track.latencies()[0].count(), 1000);
    let mut anew = moment(1);
    anew.stats.uptime_secs = 1.0;
    track.add(anew, Nanos::from_secs(31));
    assert_eq!(track.latencies()[0].count(), 0);
    assert_eq!(track.over_time(|rates| rates.writes).count(), 0);
    assert_eq!(track.device_rates("/dev/d1"), [0.0; 4]);
}
