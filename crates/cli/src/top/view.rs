//! The screen: what it shows, and the terminal that it stands on.

use std::io::{self, Stdout};

use forebay_pool::status::{Health, Timings, VdevStatus};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph, Row, Table, Wrap};
use ratatui::{Frame, Terminal};

use super::keys::{Key, Keys};
use super::moment::{Moment, Track};
use crate::clock::{duration, time_of_day};
use crate::escape::visible;
use crate::render::{bytes, count};
use crate::terminal;

/// Columns of the terminal from which there is a chart beside the figures.
const CHART_COLUMNS: u16 = 110;
/// Lines of the terminal from which that chart is high.
const CHART_LINES: u16 = 36;
/// Lines of the terminal from which events have a part of their own.
const EVENT_LINES: u16 = 30;

/// Draws one screen. `place`: which of how many pools it is.
pub fn draw(frame: &mut Frame<'_>, track: &Track, place: (usize, usize)) {
    let Some(moment) = track.last() else {
        frame.render_widget("waiting for the server", frame.area());
        return;
    };
    let area = frame.area();
    let advice = advice(moment);
    let advice_lines = if advice.is_empty() { 0 } else { 3 };
    let figure_lines = if area.height >= CHART_LINES { 11 } else { 6 };
    let event_lines = if area.height >= EVENT_LINES { 6 } else { 1 };
    let [head, said, figures, levels, devices, events, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(advice_lines),
        Constraint::Length(figure_lines),
        Constraint::Length(2),
        Constraint::Min(3),
        Constraint::Length(event_lines),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(title(moment, place), head);
    let color = health_color(moment.status.pool.state);
    frame.render_widget(Paragraph::new(advice).fg(color).wrap(Wrap { trim: true }), said);
    draw_figures(frame, track, figures);
    draw_levels(frame, moment, track, levels);
    draw_devices(frame, track, moment, devices);
    draw_events(frame, track, events);
    let keys = if place.1 > 1 { "q: leave   Tab: next pool" } else { "q: leave" };
    frame.render_widget(Line::from(keys).dim(), foot);
}

fn health_color(health: Health) -> Color {
    match health {
        Health::Online => Color::Green,
        Health::Degraded | Health::Offline => Color::Yellow,
        Health::Faulted | Health::Unavail | Health::Suspended => Color::Red,
    }
}

fn advice(moment: &Moment) -> String {
    let advice = &moment.status.advice;
    format!("{} {}", advice.status, advice.action).trim().to_owned()
}

fn title(moment: &Moment, (at, of): (usize, usize)) -> Line<'static> {
    let pool = &moment.status.pool;
    let scan = match &pool.scan {
        Some(scan) if scan.done_bytes < scan.total_bytes => format!(
            "{} {:.0}%",
            scan.kind.as_str(),
            scan.done_bytes as f64 * 100.0 / scan.total_bytes.max(1) as f64
        ),
        _ => String::new(),
    };
    let which = if of > 1 { format!(" ({} of {of})", at + 1) } else { String::new() };
    Line::from(vec![
        Span::from(format!("{}{which} ", visible(&pool.name))).bold(),
        Span::from(pool.state.as_str()).fg(health_color(pool.state)),
        Span::from(format!("  up {}  ", duration(moment.stats.uptime_secs as u64))).dim(),
        Span::from(scan),
    ])
}

fn draw_figures(frame: &mut Frame<'_>, track: &Track, area: Rect) {
    let widths = match area.width >= CHART_COLUMNS {
        true => vec![Constraint::Length(30), Constraint::Length(50), Constraint::Min(30)],
        false => vec![Constraint::Length(30), Constraint::Min(48)],
    };
    let parts = Layout::horizontal(widths).split(area);
    let rates = track.rates();
    let row = |name: &str, rate: f64, size: Option<f64>| {
        let size = size.map_or(String::new(), |size| format!("{:>9}/s", short(size)));
        Line::from(format!("{name:<8}{:>7}/s{size}", count(rate.round() as u64, false)))
    };
    let lines = vec![
        row("write", rates.writes, Some(rates.write_bytes)),
        row("durable", rates.durable, Some(rates.log_bytes)),
        row("read", rates.reads, Some(rates.read_bytes)),
        row("flush", rates.flushes, None),
    ];
    let block = Block::bordered().title(" clients ");
    frame.render_widget(Paragraph::new(lines).block(block), parts[0]);
    draw_latencies(frame, &track.latencies(), parts[1]);
    if let Some(area) = parts.get(2) {
        draw_chart(frame, track, *area);
    }
}

fn draw_latencies(frame: &mut Frame<'_>, latencies: &[Timings; 3], area: Rect) {
    const QUANTILES: [f64; 4] = [0.5, 0.99, 0.999, 1.0];
    let rows = [("durable", 0), ("flush", 1), ("read", 2)].map(|(name, at)| {
        let times = QUANTILES.map(|quantile| {
            let time = latencies[at].quantile(quantile);
            format!("{:>9}", time.map_or("-".to_owned(), |nanos| micros(nanos.0)))
        });
        Row::new([vec![name.to_owned()], times.to_vec()].concat())
    });
    let heads = ["", "      p50", "      p99", "    p99.9", "  longest"];
    let widths = [7, 9, 9, 9, 9].map(Constraint::Length);
    let table = Table::new(rows, widths)
        .header(Row::new(heads).dim())
        .block(Block::bordered().title(" latency of ten seconds "));
    frame.render_widget(table, area);
}

fn draw_chart(frame: &mut Frame<'_>, track: &Track, area: Rect) {
    let points = |of: fn(&super::moment::Rates) -> f64| -> Vec<(f64, f64)> {
        let all: Vec<f64> = track.over_time(of).collect();
        let from = 180 - all.len();
        all.into_iter().enumerate().map(|(at, rate)| ((from + at) as f64, rate)).collect()
    };
    let (writes, reads) = (points(|rates| rates.write_bytes), points(|rates| rates.read_bytes));
    let most = writes.iter().chain(&reads).map(|(_, rate)| *rate).fold(4096.0, f64::max) * 1.05;
    let set = |name: &'static str, color: Color| {
        let style = Style::new().fg(color);
        Dataset::default()
            .name(name)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(style)
    };
    let sets =
        vec![set("write", Color::Blue).data(&writes), set("read", Color::Green).data(&reads)];
    let chart = Chart::new(sets)
        .block(Block::bordered().title(" three minutes, bytes a second "))
        .legend_position(None)
        .x_axis(Axis::default().bounds([0.0, 180.0]))
        .y_axis(Axis::default().bounds([0.0, most]).labels(["0".to_owned(), short(most)]));
    frame.render_widget(chart, area);
}

fn draw_levels(frame: &mut Frame<'_>, moment: &Moment, track: &Track, area: Rect) {
    let (stats, summary, rates) = (&moment.stats, &moment.summary, track.rates());
    let half = usize::from(area.width / 2);
    let level = |name: &str, part: u64, whole: u64| {
        let share = part as f64 / whole.max(1) as f64;
        let text = format!(" {:>3.0}% of {}", share * 100.0, bytes(whole, false));
        let cells = half.saturating_sub(8 + text.len() + 2).min(20);
        let full = ((share * cells as f64).round() as usize).min(cells);
        let color = match share {
            share if share >= 0.95 => Color::Red,
            share if share >= 0.8 => Color::Yellow,
            _ => Color::Blue,
        };
        let used = name.len().max(8) + cells + text.len();
        vec![
            Span::from(format!("{name:<8}")),
            Span::from("█".repeat(full)).fg(color),
            Span::from("░".repeat(cells - full)).dim(),
            Span::from(format!("{text}{}", " ".repeat(half.saturating_sub(used)))),
        ]
    };
    let share = match rates.main_bytes {
        main if main > 0.0 => rates.cleaning_bytes * 100.0 / main,
        _ => 0.0,
    };
    let segments = &stats.segments;
    let all = segments.free + segments.open + segments.full;
    let free = segments.free * 100 / all.max(1);
    let amplification = stats.write_amplification;
    let cleaning = match half {
        half if half < 64 => {
            format!("cleaning {share:.0}%, amplified {amplification:.2}, {free}% free")
        }
        _ => format!(
            "cleaning {share:.0}% of writes; write amplification {amplification:.2}; {free}% of \
             segments free"
        ),
    };
    let first = [
        level("log", stats.log_used_bytes, stats.log_capacity_bytes),
        level("memory", stats.dirty_bytes, stats.dirty_limit_bytes),
    ];
    let mut second = level("space", summary.alloc_bytes, summary.size_bytes);
    second.push(Span::from(cleaning));
    let lines = vec![Line::from(first.concat()), Line::from(second)];
    frame.render_widget(Paragraph::new(lines), area);
}

/// The devices below `vdev`, with the part of the pool that they are.
fn leaves<'a>(
    part: &'static str,
    vdev: &'a VdevStatus,
    all: &mut Vec<(&'static str, &'a VdevStatus)>,
) {
    if vdev.children.is_empty() {
        all.push((part, vdev));
    }
    vdev.children.iter().for_each(|child| leaves(part, child, all));
}

/// The columns of the list of devices, with their widths. The name's follows from the others.
const DEVICE_COLUMNS: [(&str, u16); 8] = [
    ("", DEVICE_NAME_MIN),
    ("part", 5),
    ("state", 9),
    (" reads/s", 8),
    ("writes/s", 8),
    ("    read", 8),
    (" written", 8),
    ("errors", 6),
];
/// The least columns of the terminal for a device's name.
const DEVICE_NAME_MIN: u16 = 12;

/// Which of [`DEVICE_COLUMNS`] a terminal of `width` columns has room for, and what is left for the
/// name.
fn device_columns(width: u16) -> (Vec<usize>, u16) {
    const LEFT_OUT_FIRST: [usize; 6] = [6, 5, 1, 7, 4, 3];
    let mut shown: Vec<usize> = (0..DEVICE_COLUMNS.len()).collect();
    let mut left_out = LEFT_OUT_FIRST.iter();
    loop {
        // With the frame, and a space before each.
        let others: u16 = 2 + shown[1..].iter().map(|at| DEVICE_COLUMNS[*at].1 + 1).sum::<u16>();
        let room = width.saturating_sub(others);
        match left_out.next().filter(|_| room < DEVICE_NAME_MIN) {
            Some(column) => shown.retain(|at| at != column),
            None => return (shown, room.max(DEVICE_NAME_MIN)),
        }
    }
}

fn draw_devices(frame: &mut Frame<'_>, track: &Track, moment: &Moment, area: Rect) {
    let pool = &moment.status.pool;
    let mut all = Vec::new();
    for (part, list) in [("data", &pool.groups), ("log", &pool.logs), ("cache", &pool.caches)] {
        list.iter().for_each(|vdev| leaves(part, vdev, &mut all));
    }
    // Devices that are not well come first: all of them may not fit.
    all.sort_by_key(|(_, vdev)| std::cmp::Reverse(vdev.state));
    let room = usize::from(area.height.saturating_sub(3));
    let left_out = all.len().saturating_sub(room);
    let longest = all.iter().map(|(_, vdev)| visible(&vdev.name).chars().count()).max();
    let (shown, room_of_name) = device_columns(area.width);
    let width = usize::from(room_of_name).min(longest.unwrap_or(0)).max(DEVICE_NAME_MIN.into());
    let rows = all.iter().take(room).map(|(part, vdev)| {
        let [reads, writes, read_bytes, write_bytes] = track.device_rates(&vdev.name);
        let errors = vdev.read_errors + vdev.write_errors + vdev.checksum_errors;
        let number = |rate: f64| format!("{:>7}", count(rate.round() as u64, false));
        let cells = [
            ending(&visible(&vdev.name), width),
            (*part).to_owned(),
            vdev.state.as_str().to_owned(),
            number(reads),
            number(writes),
            format!("{:>8}", short(read_bytes)),
            format!("{:>8}", short(write_bytes)),
            format!("{:>6}", count(errors, false)),
        ];
        Row::new(shown.iter().map(|at| cells[*at].clone()).collect::<Vec<_>>())
            .fg(if vdev.state == Health::Online { Color::Reset } else { health_color(vdev.state) })
    });
    let title = match left_out {
        0 => " devices ".to_owned(),
        more => format!(" devices ({more} more) "),
    };
    let heads = shown.iter().map(|at| DEVICE_COLUMNS[*at].0);
    let widths = shown.iter().map(|at| match at {
        0 => Constraint::Length(width as u16),
        at => Constraint::Length(DEVICE_COLUMNS[*at].1),
    });
    let table = Table::new(rows, widths)
        .header(Row::new(heads).dim())
        .block(Block::bordered().title(title));
    frame.render_widget(table, area);
}

fn draw_events(frame: &mut Frame<'_>, track: &Track, area: Rect) {
    let room = usize::from(if area.height > 1 { area.height - 2 } else { 1 });
    let lines: Vec<Line<'_>> = track
        .events()
        .rev()
        .take(room)
        .map(|event| {
            let time = Span::from(format!("{} ", time_of_day(event.time_secs))).dim();
            Line::from(vec![time, Span::from(visible(&event.text).to_string())])
        })
        .collect();
    let none = vec![Line::from("no event since the import").dim()];
    let text = Paragraph::new(if lines.is_empty() { none } else { lines });
    match area.height > 1 {
        true => frame.render_widget(text.block(Block::bordered().title(" events ")), area),
        false => frame.render_widget(text, area),
    }
}

/// Bytes in few letters.
fn short(value: f64) -> String {
    bytes(value.round() as u64, false)
}

fn micros(nanos: u64) -> String {
    match nanos as f64 / 1e3 {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 1e3 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.0} µs"),
    }
}

/// The end of a long name, by which devices differ.
fn ending(name: &str, width: usize) -> String {
    let len = name.chars().count();
    if len <= width {
        return name.to_owned();
    }
    let kept: String = name.chars().skip(len - (width - 1)).collect();
    format!("…{kept}")
}

/// The screen on the terminal of standard output.
pub struct View {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    keys: Option<Keys>,
}

impl View {
    /// Turns to the terminal's other page; `None` when the terminal cannot.
    pub fn open() -> Option<Self> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if is_dumb {
            return None;
        }
        let keys = Keys::take().ok()?;
        execute!(io::stdout(), EnterAlternateScreen).ok()?;
        terminal::taken(|| {
            let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
            let _ = disable_raw_mode();
        });
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).ok()?;
        Some(Self { terminal, keys: Some(keys) })
    }

    /// Draws what there is now. What the terminal fails to draw is not worth a failure.
    pub fn show(&mut self, track: &Track, place: (usize, usize)) {
        let _ = self.terminal.draw(|frame| draw(frame, track, place));
    }

    /// The next screen is drawn as a whole.
    pub fn forget(&mut self) {
        let _ = self.terminal.clear();
    }

    /// A key that was hit.
    pub fn key(&self) -> Option<Key> {
        self.keys.as_ref()?.next()
    }

    /// Gives the terminal back as it was.
    pub fn close(&mut self) {
        if self.keys.take().is_some() {
            terminal::give_back();
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
