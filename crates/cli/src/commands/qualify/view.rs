//! Live view of a qualification on a terminal: rate, response times, the steady-state window.
//!
//! What enters: progress of the steps. What leaves: a full screen, drawn four times a second on
//! the terminal's other page, so that what stood there comes back. What always holds: nothing is
//! read from the terminal. Who calls: the command, where standard error is a terminal.

use std::cell::RefCell;
use std::io::{self, Stderr};

use forebay_qualify::{Latency, Plan, Progress, Steadiness, steadiness};
use forebay_units::Nanos;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table};
use ratatui::{Frame, Terminal};

use crate::clock;
use crate::terminal;

/// Points of the chart of rates: four a second.
const MAX_POINTS: usize = 240;

/// What the screen shows.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// The device.
    pub device: String,
    /// Steps of the plan, and which one runs, from 1.
    pub steps: usize,
    /// The step that runs, from 1.
    pub step: usize,
    /// Its title.
    pub title: String,
    /// Share of the plan's time that is over.
    pub share: f64,
    /// Time left.
    pub left: Nanos,
    /// Requests a second of the last minute, four points a second.
    pub rates: Vec<f64>,
    /// Response times of the step so far.
    pub latency: Latency,
    /// Rates of the rounds of the last steady-state test.
    pub rounds: Vec<f64>,
}

/// Draws one screen.
pub fn draw(frame: &mut Frame<'_>, shown: &Shown) {
    let [head, bar, middle, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(8),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let title = format!(" step {} of {}: {}", shown.step, shown.steps, shown.title);
    let device = Span::styled(shown.device.as_str(), Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Line::from(vec![device, Span::raw(title)]), head);
    let left = clock::duration(shown.left.as_secs_f64().ceil() as u64);
    let gauge = Gauge::default().ratio(shown.share.clamp(0.0, 1.0)).label(format!("{left} left"));
    frame.render_widget(gauge, bar);
    let [left, right] =
        Layout::horizontal([Constraint::Min(40), Constraint::Length(34)]).areas(middle);
    draw_rates(frame, shown, left);
    let [times, rounds] =
        Layout::vertical([Constraint::Length(9), Constraint::Min(5)]).areas(right);
    draw_times(frame, shown, times);
    draw_rounds(frame, shown, rounds);
    frame.render_widget(Line::from("Ctrl-C stops; --resume goes on").dim(), foot);
}

fn draw_rates(frame: &mut Frame<'_>, shown: &Shown, area: Rect) {
    let points: Vec<(f64, f64)> =
        shown.rates.iter().enumerate().map(|(at, rate)| (at as f64 / 4.0, *rate)).collect();
    let most = shown.rates.iter().copied().fold(1.0, f64::max) * 1.1;
    let seconds = MAX_POINTS as f64 / 4.0;
    let now = shown.rates.last().copied().unwrap_or(0.0);
    let line = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(Style::new().cyan())
        .data(&points);
    let label = |rate: f64| format!("{rate:.0}");
    let chart = Chart::new(vec![line])
        .block(Block::bordered().title(format!(" requests a second: {now:.0} ")))
        .x_axis(Axis::default().bounds([0.0, seconds]).labels(["", "60 s"]))
        .y_axis(Axis::default().bounds([0.0, most]).labels([
            label(0.0),
            label(most / 2.0),
            label(most),
        ]));
    frame.render_widget(chart, area);
}

fn draw_times(frame: &mut Frame<'_>, shown: &Shown, area: Rect) {
    let micros =
        |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", ns as f64 / 1e3));
    let latency = &shown.latency;
    let mut rows: Vec<(&str, Option<u64>)> =
        latency.percentiles().iter().map(|(name, _, ns)| (*name, *ns)).collect();
    rows.push(("longest", (latency.max_ns > 0).then_some(latency.max_ns)));
    let rows = rows
        .into_iter()
        .map(|(name, ns)| Row::new([name.to_owned(), format!("{:>16}", micros(ns))]));
    let table = Table::new(rows, [Constraint::Length(9), Constraint::Min(16)])
        .block(Block::bordered().title(" response, µs "));
    frame.render_widget(table, area);
}

/// The last rounds, and both criteria over the window of five.
fn draw_rounds(frame: &mut Frame<'_>, shown: &Shown, area: Rect) {
    let block = Block::bordered().title(" steady state ");
    let room = area.height.saturating_sub(5) as usize;
    let mut lines: Vec<Line<'_>> = Vec::new();
    match steadiness(&shown.rounds) {
        Some(steady) => lines.extend(criteria(&steady)),
        None if shown.rounds.is_empty() => lines.push(Line::from("no round yet").dim()),
        None => lines.push(Line::from("five rounds are needed").dim()),
    }
    let count = shown.rounds.len();
    let from = count.saturating_sub(room.max(1));
    lines.extend(
        (from..count)
            .map(|at| Line::from(format!("round {:>3}  {:>12.0}/s", at + 1, shown.rounds[at]))),
    );
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn criteria(steady: &Steadiness) -> [Line<'static>; 3] {
    let percent = |share: f64| share * 100.0;
    let word = match steady.is_reached {
        true => Line::from("reached").green(),
        false => Line::from("not reached").yellow(),
    };
    [
        word,
        Line::from(format!("range {:>6.1} % of 20 %", percent(steady.range))),
        Line::from(format!("slope {:>6.1} % of 10 %", percent(steady.slope.abs()))),
    ]
}

/// The view on the terminal of standard error.
pub struct View {
    terminal: RefCell<Terminal<CrosstermBackend<Stderr>>>,
    shown: RefCell<Shown>,
    total: Nanos,
}

impl View {
    /// Turns to the terminal's other page; `None` when the terminal cannot.
    pub fn open(device: &str, plan: &Plan) -> Option<Self> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if is_dumb {
            return None;
        }
        execute!(io::stderr(), EnterAlternateScreen).ok()?;
        terminal::taken(|| _ = execute!(io::stderr(), Show, LeaveAlternateScreen));
        let terminal = Terminal::new(CrosstermBackend::new(io::stderr())).ok()?;
        let shown =
            Shown { device: device.to_owned(), steps: plan.steps.len(), ..Shown::default() };
        Some(Self {
            terminal: RefCell::new(terminal),
            shown: RefCell::new(shown),
            total: plan.limit(),
        })
    }

    /// A step begins.
    pub fn begin(&self, number: usize, title: String) {
        let mut shown = self.shown.borrow_mut();
        (shown.step, shown.title) = (number, title);
        shown.latency = Latency::default();
    }

    /// Draws what there is now. What the terminal fails to draw is not worth a failure.
    pub fn show(&self, progress: &Progress, left: Nanos) {
        let mut shown = self.shown.borrow_mut();
        shown.rates.push(progress.iops);
        if shown.rates.len() > MAX_POINTS {
            shown.rates.remove(0);
        }
        shown.latency = progress.latency;
        shown.left = left;
        shown.share = 1.0 - left.as_secs_f64() / self.total.as_secs_f64().max(1e-9);
        let _ = self.terminal.borrow_mut().draw(|frame| draw(frame, &shown));
    }

    /// The rates of the rounds so far.
    pub fn rounds(&self, rounds: &[f64]) {
        self.shown.borrow_mut().rounds = rounds.to_vec();
    }
}

impl Drop for View {
    fn drop(&mut self) {
        terminal::give_back();
    }
}

#[cfg(test)]
mod tests;
