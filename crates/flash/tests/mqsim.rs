//! The model beside MQSim 7ec40e3 on its own configuration: random reads of a page, closed loop.
//!
//! One network of chips and channels explains both: with the model's rules it gives the model's
//! responses, and with MQSim's rules those that MQSim printed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use forebay_flash::{Chance, DeviceSpec, Model, Request, Ssd};
use forebay_units::Nanos;

/// `ssdconfig.xml` of MQSim, with an ideal map and no data cache; fewer blocks. The link has what
/// MQSim's host interface takes for one read.
const DEVICE: &str = r#"
name = "MQSim's"
capacity_bytes = 268_435_456
[interface]
kind = "nvme"
bandwidth_mb_s = 100_000
command_us = 0
hops = 1
hop_us = 2.4
queue_depth = 4096
bit_error_rate = 0
[media.flash.geometry]
channels = 8
dies_per_channel = 8
planes_per_die = 1
blocks_per_plane = 64
pages_per_block = 16
page_bytes = 8192
[media.flash.timing]
read_us = 75
program_us = 750
erase_us = 3800
channel_mb_s = 333
[media.flash.ftl]
mapping_unit_bytes = 8192
"#;

const PAGE_BYTES: u64 = 8192;
const CHANNELS: usize = 8;
const READ_NS: u64 = 75_000;
const TRANSFER_NS: u64 = 24_600;
/// What else a read of MQSim takes, link and commands.
const REST_NS: u64 = 2_400;

/// Mean responses in microseconds that MQSim printed, by requests outstanding.
const PRINTED: [(usize, f64); 4] = [(1, 102.0), (8, 121.0), (32, 226.0), (128, 738.0)];

/// Who waits for what.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rules {
    /// Eight dies a channel; a die goes on when it has read, while its data waits for the channel.
    Dies,
    /// Four chips a channel, each busy until its data has left; a chip is given its command only
    /// while the channel is idle, and data that waits goes first.
    MqSim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Read(usize, u64),
    Sent(usize, u64),
    Back(u64),
}

struct Network {
    rules: Rules,
    chance: Chance,
    waiting: Vec<VecDeque<u64>>,
    is_busy: Vec<bool>,
    /// By channel, reads whose data waits: server, and when it was asked for.
    data: Vec<VecDeque<(usize, u64)>>,
    channel_is_busy: Vec<bool>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
}

impl Network {
    fn new(rules: Rules) -> Self {
        let servers = CHANNELS * if rules == Rules::Dies { 8 } else { 4 };
        Self {
            rules,
            chance: Chance::new(5),
            waiting: vec![VecDeque::new(); servers],
            is_busy: vec![false; servers],
            data: vec![VecDeque::new(); CHANNELS],
            channel_is_busy: vec![false; CHANNELS],
            events: BinaryHeap::new(),
            count: 0,
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    fn ask(&mut self, now: u64) {
        let server = self.chance.below(self.waiting.len() as u32) as usize;
        self.waiting[server].push_back(now);
        self.go_on(server % CHANNELS, now);
    }

    /// Starts what can start on a channel and its servers.
    fn go_on(&mut self, channel: usize, now: u64) {
        let is_idle = !self.channel_is_busy[channel];
        let next = if is_idle { self.data[channel].pop_front() } else { None };
        if let Some((server, asked)) = next {
            self.channel_is_busy[channel] = true;
            self.at(now + TRANSFER_NS, Event::Sent(server, asked));
        }
        if self.rules == Rules::MqSim && self.channel_is_busy[channel] {
            return;
        }
        for server in (channel..self.waiting.len()).step_by(CHANNELS) {
            if self.is_busy[server] {
                continue;
            }
            if let Some(asked) = self.waiting[server].pop_front() {
                self.is_busy[server] = true;
                self.at(now + READ_NS, Event::Read(server, asked));
            }
        }
    }

    /// Mean response in microseconds with so many requests outstanding.
    fn response_us(rules: Rules, outstanding: usize) -> f64 {
        const READS: u64 = 60_000;
        let mut network = Self::new(rules);
        (0..outstanding).for_each(|_| network.ask(0));
        let (mut done, mut sum_ns) = (0, 0);
        while done < READS {
            let Reverse((now, _, event)) = network.events.pop().expect("requests go round");
            match event {
                Event::Read(server, asked) => {
                    network.data[server % CHANNELS].push_back((server, asked));
                    network.is_busy[server] = rules == Rules::MqSim;
                    network.go_on(server % CHANNELS, now);
                }
                Event::Sent(server, asked) => {
                    network.channel_is_busy[server % CHANNELS] = false;
                    network.is_busy[server] &= rules == Rules::Dies;
                    network.at(now + REST_NS, Event::Back(asked));
                    network.go_on(server % CHANNELS, now);
                }
                Event::Back(asked) => {
                    (done, sum_ns) = (done + 1, sum_ns + (now - asked));
                    network.ask(now);
                }
            }
        }
        sum_ns as f64 / READS as f64 / 1e3
    }
}

/// The same of the model.
fn model_us(outstanding: usize) -> f64 {
    const READS: u64 = 60_000;
    let spec: DeviceSpec = toml::from_str(DEVICE).unwrap();
    let mut ssd = Ssd::new(&spec, 1).unwrap();
    let pages = (ssd.identity().capacity_bytes / PAGE_BYTES) as u32;
    let mut now = Nanos(0);
    for page in 0..u64::from(pages) {
        now = ssd.submit(now, &Request::write(page * PAGE_BYTES, PAGE_BYTES)).unwrap().at;
    }
    let start = ssd.submit(now, &Request::flush()).unwrap().at + Nanos::from_secs(1);
    let (mut chance, mut sum_ns) = (Chance::new(9), 0);
    let mut in_flight: BinaryHeap<Reverse<Nanos>> = vec![Reverse(start); outstanding].into();
    for _ in 0..READS {
        let Reverse(now) = in_flight.pop().unwrap();
        let offset = u64::from(chance.below(pages)) * PAGE_BYTES;
        let at = ssd.submit(now, &Request::read(offset, PAGE_BYTES)).unwrap().at;
        sum_ns += at.since(now).0;
        in_flight.push(Reverse(at));
    }
    sum_ns as f64 / READS as f64 / 1e3
}

#[track_caller]
fn assert_near(what: &str, expected: f64, got: f64) {
    let off = (got / expected - 1.0).abs();
    assert!(off < 0.02, "{what}: {expected:.1} us expected, {got:.1} us got");
}

#[test]
fn model_follows_the_network_of_dies_and_channels() {
    for (outstanding, _) in PRINTED {
        let expected = Network::response_us(Rules::Dies, outstanding);
        assert_near(&format!("{outstanding} outstanding"), expected, model_us(outstanding));
    }
}

#[test]
fn mqsim_differs_by_chips_that_wait_for_their_channel() {
    for (outstanding, printed) in PRINTED {
        let got = Network::response_us(Rules::MqSim, outstanding);
        assert_near(&format!("{outstanding} outstanding"), printed, got);
    }
}
