//! One place that events are told to: a queue, a limit, and some patience with failures.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_pool::status::EventRecord;
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::log::{self, Level};

/// Events that wait.
const MAX_WAITING: usize = 256;
/// How long a message may take to be taken.
const SEND_TIMEOUT: Nanos = Nanos::from_secs(30);
/// Before a message that was not taken is sent again.
const RETRY_AFTER: [Nanos; 2] = [Nanos::from_secs(5), Nanos::from_secs(60)];

/// An event with what to do about it.
#[derive(Clone, Debug)]
pub struct Notice {
    /// The event.
    pub event: EventRecord,
    /// How much it matters.
    pub level: Level,
    /// What to do; empty when there is nothing to do.
    pub action: String,
}

/// One message: its events, and how many were left out before.
pub(super) struct Message {
    pub notices: Vec<Notice>,
    pub missed: u64,
}

type Sending = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// A place that events are told to.
pub(super) struct Sink {
    /// Its name in the configuration.
    pub name: &'static str,
    /// Events that matter less are left out.
    pub least: Level,
    /// Events in one message.
    pub batch_max: usize,
    /// Messages in each `window`.
    pub messages_max: usize,
    pub window: Nanos,
    pub send: Box<dyn Fn(Rc<Message>) -> Sending>,
    pub state: State,
}

#[derive(Default)]
pub(super) struct State {
    waiting: RefCell<VecDeque<Notice>>,
    missed: Cell<u64>,
    is_running: Cell<bool>,
    sent_at: RefCell<VecDeque<Nanos>>,
}

impl Sink {
    /// Tells of an event after those that wait.
    pub fn offer(self: &Rc<Self>, notice: Notice) {
        if notice.level > self.least {
            return;
        }
        let State { waiting, missed, is_running, .. } = &self.state;
        if waiting.borrow().len() < MAX_WAITING {
            waiting.borrow_mut().push_back(notice);
        } else {
            missed.set(missed.get() + 1);
        }
        if !is_running.replace(true) {
            rt::spawn_detached(Box::pin(self.clone().send_waiting()));
        }
    }

    async fn send_waiting(self: Rc<Self>) {
        loop {
            if self.state.waiting.borrow().is_empty() {
                break;
            }
            self.wait_for_turn().await;
            let notices: Vec<Notice> = {
                let mut waiting = self.state.waiting.borrow_mut();
                let count = waiting.len().min(self.batch_max);
                waiting.drain(..count).collect()
            };
            let (count, missed) = (notices.len(), &self.state.missed);
            let message = Rc::new(Message { notices, missed: missed.replace(0) });
            if let Err(why) = self.send_patiently(&message).await {
                let name = self.name;
                missed.set(missed.get() + message.missed + count as u64);
                log::warning(&format!("events.{name}: {count} events could not be told: {why}"));
            }
        }
        self.state.is_running.set(false);
    }

    /// Waits until the limit allows a message, and counts it.
    async fn wait_for_turn(&self) {
        loop {
            let now = rt::now();
            let oldest = {
                let mut sent_at = self.state.sent_at.borrow_mut();
                sent_at.retain(|at| now.since(*at) < self.window);
                if sent_at.len() < self.messages_max {
                    sent_at.push_back(now);
                    return;
                }
                sent_at[0]
            };
            rt::sleep_until(oldest + self.window).await;
        }
    }

    async fn send_patiently(&self, message: &Rc<Message>) -> Result<(), String> {
        let mut again = RETRY_AFTER.into_iter();
        loop {
            let sent = rt::timeout(SEND_TIMEOUT, (self.send)(message.clone())).await;
            let Err(why) = sent.unwrap_or_else(|_| Err("no answer within 30 s".to_owned())) else {
                return Ok(());
            };
            match again.next() {
                Some(wait) => rt::sleep(wait).await,
                None => return Err(why),
            }
        }
    }
}
