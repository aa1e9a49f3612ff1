//! Devices whose nature is known, because it is nothing but a rule for their times.

use std::cell::RefCell;

use forebay_device::{
    BlockDevice, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes, Operation,
    check_range,
};
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::content::Numbers;

/// A rule for times.
#[derive(Clone, Copy, Debug)]
pub struct Nature {
    pub name: &'static str,
    pub write_ns: u64,
    /// Requests that are served at once.
    pub channels: usize,
    /// Tenths of a percent of requests that take longer, and how many times as long.
    pub slow_permille: u64,
    pub slow_factor: f64,
    /// Percent by which times vary.
    pub jitter_percent: u64,
    pub is_volatile: bool,
    /// Time of a flush, and of each dirty block more.
    pub flush_ns: (u64, u64),
    /// Other work delays answers, in bursts.
    pub is_machine_busy: bool,
    /// Flushes return at once, whatever is dirty.
    pub lies: bool,
    /// A flush is answered with "not supported".
    pub refuses_flush: bool,
    /// How many times as fast a repeating byte is written.
    pub compression: f64,
    /// How many times as long a write beside the grid takes.
    pub misaligned_factor: f64,
    /// How many times as long a random write takes.
    pub random_factor: f64,
    /// After this many bytes, writes take so many times as long.
    pub degrades: Option<(u64, f64)>,
    /// After so much busy time without rest, writes take so many times as long.
    pub throttles: Option<(Nanos, f64)>,
    /// Percent by which the rate wanders from one such stretch of time to the next.
    pub wanders: Option<(Nanos, u64)>,
}

/// A flash drive without faults: its cache is volatile, and it flushes it.
pub const HONEST: Nature = Nature {
    name: "honest drive",
    write_ns: 400_000,
    channels: 4,
    slow_permille: 1,
    slow_factor: 10.0,
    jitter_percent: 10,
    is_volatile: true,
    flush_ns: (100_000, 50_000),
    is_machine_busy: false,
    lies: false,
    refuses_flush: false,
    compression: 1.0,
    misaligned_factor: 1.0,
    random_factor: 1.2,
    degrades: None,
    throttles: None,
    wanders: None,
};

/// One device for each detector, and those on which all must stay silent.
pub fn natures() -> Vec<Nature> {
    let limit = Nanos::from_millis(600);
    vec![
        HONEST,
        Nature { name: "honest drive, long tail", slow_permille: 10, slow_factor: 20.0, ..HONEST },
        Nature {
            name: "honest drive, slows by a tenth",
            degrades: Some((40 << 20, 1.1)),
            ..HONEST
        },
        Nature {
            name: "honest drive, rate wanders by a half",
            wanders: Some((Nanos::from_millis(40), 50)),
            ..HONEST
        },
        Nature {
            name: "honest drive, busy machine",
            write_ns: 150_000,
            flush_ns: (150_000, 2_000),
            is_machine_busy: true,
            ..HONEST
        },
        Nature { name: "drive that ignores flushes", lies: true, ..HONEST },
        Nature {
            name: "drive that ignores flushes, busy machine",
            write_ns: 150_000,
            lies: true,
            is_machine_busy: true,
            ..HONEST
        },
        Nature { name: "drive that compresses", compression: 2.0, ..HONEST },
        Nature { name: "drive that compresses a little", compression: 1.3, ..HONEST },
        Nature { name: "drive that misaligns", misaligned_factor: 1.8, ..HONEST },
        Nature { name: "drive that degrades", degrades: Some((150 << 20, 2.5)), ..HONEST },
        Nature { name: "drive that throttles", throttles: Some((limit, 2.0)), ..HONEST },
        Nature {
            name: "DRAM device",
            write_ns: 100_000,
            slow_permille: 0,
            jitter_percent: 2,
            is_volatile: false,
            random_factor: 1.0,
            ..HONEST
        },
    ]
}

struct State {
    numbers: Numbers,
    /// When each channel is free.
    free_at: Vec<Nanos>,
    dirty_blocks: u64,
    written_bytes: u64,
    next_offset: u64,
    /// Busy time that rest has not made up for.
    heat_ns: u64,
    cooled_at: Nanos,
}

pub struct Fake {
    nature: Nature,
    size_bytes: u64,
    seed: u64,
    state: RefCell<State>,
}

impl Fake {
    pub fn new(nature: Nature, size_bytes: u64, seed: u64) -> Self {
        let state = RefCell::new(State {
            numbers: Numbers::new(seed ^ 0x5eed),
            free_at: vec![Nanos::ZERO; nature.channels],
            dirty_blocks: 0,
            written_bytes: 0,
            next_offset: 0,
            heat_ns: 0,
            cooled_at: Nanos::ZERO,
        });
        Self { nature, size_bytes, seed, state }
    }

    /// How much longer than usual this write takes.
    fn write_factor(&self, state: &mut State, offset: u64, data: &[u8]) -> f64 {
        let nature = &self.nature;
        let mut factor = data.len() as f64 / 4096.0;
        if offset != state.next_offset {
            factor *= nature.random_factor;
        }
        if offset % 4096 != 0 {
            factor *= nature.misaligned_factor;
        }
        if nature.compression > 1.0 {
            // Of each 4 KiB, what repeats its last byte is compressed.
            let last = data[data.len() - 1];
            let repeated = data.iter().rev().take_while(|byte| **byte == last).count();
            let share = repeated as f64 / data.len() as f64;
            factor /= 1.0 + (nature.compression - 1.0) * share;
        }
        if nature.degrades.is_some_and(|(bytes, _)| state.written_bytes > bytes) {
            factor *= nature.degrades.unwrap().1;
        }
        if let Some((stretch, percent)) = nature.wanders {
            let mut of_stretch = Numbers::new((rt::now().0 / stretch.0) ^ self.seed);
            factor *= 1.0 + of_stretch.below(percent + 1) as f64 / 100.0;
        }
        if let Some((limit, slower)) = nature.throttles {
            let now = rt::now();
            // Rest takes away four times what the same time of one busy channel adds.
            let rested = now.since(state.cooled_at.max(*state.free_at.iter().max().unwrap()));
            state.heat_ns = state.heat_ns.saturating_sub(4 * rested.0);
            state.cooled_at = now;
            state.heat_ns += (nature.write_ns as f64 * factor) as u64 / nature.channels as u64;
            if state.heat_ns > limit.0 {
                state.heat_ns = state.heat_ns.min(limit.0 + limit.0 / 2);
                factor *= slower;
            }
        }
        factor
    }

    /// When a request that needs this much time of a channel ends.
    fn end_of(&self, state: &mut State, service_ns: f64) -> Nanos {
        let nature = &self.nature;
        let spread = state.numbers.below(2 * nature.jitter_percent + 1) as f64;
        let mut service_ns = service_ns * (100.0 + spread - nature.jitter_percent as f64) / 100.0;
        if state.numbers.below(1000) < nature.slow_permille {
            service_ns *= nature.slow_factor;
        }
        let channel = state.free_at.iter_mut().min().unwrap();
        *channel = (*channel).max(rt::now()) + Nanos(service_ns as u64);
        *channel + self.machine_delay(state)
    }

    /// How long other work of the machine keeps the answer back.
    fn machine_delay(&self, state: &mut State) -> Nanos {
        const BURST: Nanos = Nanos::from_millis(7);
        const MOST: Nanos = Nanos::from_millis(1);
        let burst = Numbers::new((rt::now().0 / BURST.0) ^ self.seed).below(100);
        match self.nature.is_machine_busy && burst < 60 {
            true => Nanos(state.numbers.below(MOST.0)),
            false => Nanos::ZERO,
        }
    }
}

impl BlockDevice for Fake {
    fn name(&self) -> &str {
        self.nature.name
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes,
            block_bytes: 512,
            volatile_cache: self.nature.is_volatile,
            discard_bytes: 0,
            read_only: false,
        }
    }

    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            let (len, geometry) = (buf.len() as u64, self.geometry());
            check_range(self.name(), &geometry, Operation::Read, offset_bytes, len)?;
            let at = {
                let state = &mut *self.state.borrow_mut();
                self.end_of(state, self.nature.write_ns as f64 / 2.0)
            };
            rt::sleep_until(at).await;
            Ok(buf)
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let (len, geometry) = (data.len() as u64, self.geometry());
            check_range(self.name(), &geometry, Operation::Write, offset_bytes, len)?;
            let at = {
                let state = &mut *self.state.borrow_mut();
                let mut factor = self.write_factor(state, offset_bytes, &data);
                state.next_offset = offset_bytes + len;
                state.written_bytes += len;
                if !fua {
                    state.dirty_blocks += len.div_ceil(4096);
                } else if self.nature.is_volatile && !self.nature.lies {
                    factor *= 2.0;
                }
                self.end_of(state, self.nature.write_ns as f64 * factor)
            };
            rt::sleep_until(at).await;
            Ok(())
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            if self.nature.refuses_flush {
                let (op, kind) = (Operation::Flush, ErrorKind::Unsupported);
                return Err(DeviceError::new(self.name(), op, 0, 0, kind));
            }
            let at = {
                let state = &mut *self.state.borrow_mut();
                let dirty = std::mem::take(&mut state.dirty_blocks);
                let works = self.nature.is_volatile && !self.nature.lies;
                let (least_ns, block_ns) = self.nature.flush_ns;
                let service_ns = if works { least_ns + block_ns * dirty.min(1000) } else { 5_000 };
                let service_ns = service_ns as f64;
                self.end_of(state, service_ns)
            };
            rt::sleep_until(at).await;
            Ok(())
        })
    }

    fn discard(&self, _: u64, _: u64, _: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
