//! Requests to a store: each is made again until the store answers, and counted.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{IoBytes, ObjectStats, StoreRequest};
use forebay_rt as rt;
use forebay_rt::sync::Semaphore;
use forebay_units::Nanos;

use crate::attempts::Attempts;
use crate::store::{Store, StoreError};

/// The pause before a request is made again, at first.
const FIRST_PAUSE: Nanos = Nanos::from_millis(50);
/// The longest such pause.
const LONGEST_PAUSE: Nanos = Nanos::from_secs(10);
/// For how long a device that is being opened makes requests again that reach no store.
const UNREACHED_FOR: Nanos = Nanos::from_secs(2);
/// Requests of a kind that are under way at once.
const DEPTH: u64 = 16;
/// Objects that are deleted with one request.
const DELETED_AT_ONCE: usize = 1000;

/// Requests of one device.
pub(crate) struct Requests {
    store: Rc<dyn Store>,
    gets: Rc<Semaphore>,
    puts: Rc<Semaphore>,
    /// Whether no caller waits any more: requests are not made again.
    abandoned: Cell<bool>,
    /// While the device is being opened: until when requests that reach no store are made again.
    unreached_until: Cell<Option<Nanos>>,
    stats: RefCell<ObjectStats>,
    attempts: Attempts,
}

impl Requests {
    pub fn new(store: Rc<dyn Store>) -> Self {
        Self {
            store,
            gets: Semaphore::new(DEPTH),
            puts: Semaphore::new(DEPTH),
            abandoned: Cell::new(false),
            unreached_until: Cell::new(None),
            stats: RefCell::default(),
            attempts: Attempts::default(),
        }
    }

    pub fn name(&self) -> &str {
        self.store.name()
    }

    /// From here on a request that gets no answer fails.
    pub fn abandon(&self) {
        self.abandoned.set(true);
    }

    /// What opens the device: `opening`, or the store's last failure if `at_most` has passed. A
    /// store that no request reaches is given up soon. One that has said nothing is waited for.
    pub async fn open_within<T>(
        &self,
        at_most: Nanos,
        opening: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.unreached_until.set(Some(rt::now() + UNREACHED_FOR));
        let mut opening = std::pin::pin!(opening);
        let opened = loop {
            if let Ok(opened) = rt::timeout(at_most, opening.as_mut()).await {
                break opened;
            }
            if let Some((_, Some(text))) = self.attempts.silence() {
                break Err(StoreError::Unavailable { text });
            }
        };
        self.unreached_until.set(None);
        opened
    }

    pub fn stats(&self) -> ObjectStats {
        let (silent_for, silent_error) = self.attempts.silence().unzip();
        ObjectStats {
            silent_for,
            silent_error: silent_error.flatten(),
            failing: self.attempts.failing(),
            ..self.stats.borrow().clone()
        }
    }

    pub async fn put(
        &self,
        name: &str,
        parts: Vec<IoBytes>,
        only_new: bool,
    ) -> Result<(), StoreError> {
        let _permit = self.puts.acquire(1).await;
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let put = || {
            self.stats.borrow_mut().puts += 1;
            self.stats.borrow_mut().put_bytes += bytes;
            self.store.put(name, parts.clone(), only_new)
        };
        self.until_answered((StoreRequest::Put, name), put).await
    }

    pub async fn get(
        &self,
        name: &str,
        range: Option<Range<u64>>,
    ) -> Result<Vec<IoBytes>, StoreError> {
        let _permit = self.gets.acquire(1).await;
        let get = || {
            self.stats.borrow_mut().gets += 1;
            self.store.get(name, range.clone())
        };
        let parts = self.until_answered((StoreRequest::Get, name), get).await?;
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        self.stats.borrow_mut().got_bytes += bytes;
        Ok(parts)
    }

    pub async fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let list = || {
            self.stats.borrow_mut().lists += 1;
            self.store.list(prefix)
        };
        self.until_answered((StoreRequest::List, prefix), list).await
    }

    pub async fn delete(&self, names: Vec<String>) -> Result<(), StoreError> {
        for part in names.chunks(DELETED_AT_ONCE) {
            let delete = || {
                self.stats.borrow_mut().deletes += part.len() as u64;
                self.store.delete(part.to_vec())
            };
            self.until_answered((StoreRequest::Delete, &part[0]), delete).await?;
        }
        Ok(())
    }

    /// Makes a request until it is answered. Pauses grow, and vary so that clients of a store that
    /// comes back do not ask all at once.
    async fn until_answered<T, F>(
        &self,
        what: (StoreRequest, &str),
        mut request: impl FnMut() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut pause = FIRST_PAUSE;
        let attempt = self.attempts.begin(what);
        loop {
            let answer = request().await;
            let until = match &answer {
                Err(StoreError::Unavailable { text }) => {
                    attempt.failed(text);
                    None
                }
                Err(StoreError::Unreachable { text }) => {
                    attempt.failed(text);
                    self.unreached_until.get()
                }
                _ => {
                    attempt.answered();
                    return answer;
                }
            };
            let left = until.map(|until| until.since(rt::now()));
            if self.abandoned.get() || left == Some(Nanos::ZERO) {
                return answer;
            }
            self.stats.borrow_mut().retries += 1;
            let drawn = Nanos(pause.0 / 2 + rt::random_below(pause.0));
            rt::sleep(left.map_or(drawn, |left| drawn.min(left))).await;
            pause = Nanos(pause.0 * 2).min(LONGEST_PAUSE);
        }
    }
}
