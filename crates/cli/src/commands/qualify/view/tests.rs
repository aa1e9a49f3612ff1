use forebay_qualify::Latency;
use forebay_units::Nanos;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::{Shown, draw};

/// The screen as lines of text.
fn screen(shown: &Shown, columns: u16, rows: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(frame, shown)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y: u16| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..rows).map(line).collect::<Vec<String>>().join("\n")
}

fn shown() -> Shown {
    Shown {
        device: "disk".to_owned(),
        steps: 47,
        step: 12,
        title: "rounds to steady state".to_owned(),
        share: 0.25,
        left: Nanos::from_secs(95),
        rates: vec![4_000.0, 4_100.0, 4_050.0],
        latency: Latency { p50_ns: Some(81_500), max_ns: 9_000_000, ..Latency::default() },
        rounds: vec![900.0, 1_000.0, 1_000.0, 1_010.0, 1_000.0, 990.0],
    }
}

#[test]
fn screen_has_rate_response_window_and_time_left() {
    let text = screen(&shown(), 100, 30);
    let row = |name: &str, value: &str| format!("{name:<9} {value:>16}");
    for part in [row("p50", "81.5"), row("longest", "9000.0"), row("p99.999", "-")] {
        assert!(text.contains(&part), "{part}:\n{text}");
    }
    for part in [
        "disk step 12 of 47: rounds to steady state",
        "00:01:35 left",
        "requests a second: 4050",
        "reached",
        "range    2.0 % of 20 %",
        "slope    0.8 % of 10 %",
        "round   6           990/s",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(!text.contains("not reached"), "{text}");
}

#[test]
fn window_that_is_not_steady_is_called_so() {
    let falling = Shown { rounds: vec![1000.0, 950.0, 900.0, 850.0, 790.0], ..shown() };
    let text = screen(&falling, 100, 30);
    assert!(text.contains("not reached"), "{text}");
    let few = Shown { rounds: vec![1000.0; 4], ..shown() };
    assert!(screen(&few, 100, 30).contains("five rounds are needed"));
    let none = Shown { rounds: Vec::new(), ..shown() };
    assert!(screen(&none, 100, 30).contains("no round yet"));
}

#[test]
fn small_terminals_are_drawn_without_a_panic() {
    for (columns, rows) in [(1, 1), (20, 5), (40, 10), (80, 24), (300, 100)] {
        screen(&shown(), columns, rows);
    }
}
