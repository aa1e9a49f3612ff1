//! A small HTTP/1.1 server for figures: one request a connection, answers without waiting.
//!
//! What enters: a listener, and what answers requests. What always holds: a client that is slow,
//! floods or hangs loses its connection, and takes neither memory nor time from others. Who calls:
//! the listeners of `--metrics` and `--web`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::net::{Listener, Stream};
use forebay_units::Nanos;

use crate::log;

/// Connections at a time. For a further one, the one that has waited longest for its request ends.
const CONNECTIONS_MAX: usize = 16;
/// Longest head of a request.
const HEAD_BYTES: usize = 8 << 10;
/// How long a client may take for a request, and for an answer.
const CLIENT_TIMEOUT: Nanos = Nanos::from_secs(10);
/// Before a listener that failed is asked again.
const ACCEPT_RETRY: Nanos = Nanos::from_millis(200);

/// The head of a request for something to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The path, without what follows a question mark.
    pub path: String,
    /// What follows the question mark.
    pub query: String,
    /// Names in small letters, and values.
    pub headers: Vec<(String, String)>,
}

impl Request {
    /// The first header of this name (in small letters).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }
}

/// What a request is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Code and words.
    pub status: &'static str,
    /// What the body is.
    pub content_type: &'static str,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// The answer to a request that went well.
    #[must_use]
    pub fn ok(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: "200 OK", content_type, headers: Vec::new(), body: body.into() }
    }

    /// A refusal, with one line for a person.
    #[must_use]
    pub fn refusal(status: &'static str, line: &str) -> Self {
        let content_type = "text/plain; charset=utf-8";
        let body = format!("{line}\n").into_bytes();
        Self { status, content_type, headers: Vec::new(), body }
    }

    /// The same with a further header.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn bytes(&self, with_body: bool) -> Vec<u8> {
        let Self { status, content_type, headers, body } = self;
        let mut text = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             Connection: close\r\n",
            body.len()
        );
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        if with_body {
            bytes.extend_from_slice(body);
        }
        bytes
    }
}

/// What answers requests.
pub type Site = Rc<dyn Fn(&Request) -> Response>;

/// The connections that are open.
#[derive(Default)]
struct Connections {
    count: Cell<usize>,
    /// Those that have not sent their whole request, in the order in which they came.
    waiting: RefCell<BTreeMap<u64, Rc<Stream>>>,
    next: Cell<u64>,
}

impl Connections {
    /// Answers the request of `stream` in a task of its own, or ends it when there is no place.
    fn admit(self: &Rc<Self>, stream: Stream, site: &Site) {
        if !self.has_place() {
            stream.shutdown();
            return;
        }
        self.count.set(self.count.get() + 1);
        let (stream, id) = (Rc::new(stream), self.next.get());
        self.next.set(id + 1);
        self.waiting.borrow_mut().insert(id, stream.clone());
        rt::spawn(self.clone().serve(id, stream, site.clone()));
    }

    /// Whether there is a place for another. Ends the connection that has waited longest for its
    /// request when there is none.
    fn has_place(&self) -> bool {
        if self.count.get() < CONNECTIONS_MAX {
            return true;
        }
        match self.waiting.borrow_mut().pop_first() {
            Some((_, oldest)) => {
                oldest.shutdown();
                true
            }
            None => false,
        }
    }

    async fn serve(self: Rc<Self>, id: u64, stream: Rc<Stream>, site: Site) {
        let head = rt::timeout(CLIENT_TIMEOUT, Box::pin(read_head(&stream))).await;
        // One that was ended for another gets no answer.
        let is_open = self.waiting.borrow_mut().remove(&id).is_some();
        if let (Ok(Some(head)), true) = (head, is_open) {
            let reply = reply_to(&head, &site);
            let _ = rt::timeout(CLIENT_TIMEOUT, Box::pin(stream.send_all(reply))).await;
        }
        stream.shutdown();
        self.count.set(self.count.get() - 1);
    }
}

/// Answers every request with what `site` says.
pub async fn serve_http(listener: Listener, site: Site) {
    let connections = Rc::new(Connections::default());
    loop {
        match listener.accept().await {
            Ok(stream) => connections.admit(stream, &site),
            Err(error) => {
                // Mostly for want of descriptors: the end of a connection frees one.
                log::warning(&format!("{}: cannot accept: {error}", listener.address()));
                rt::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// The head of a request: what comes before an empty line. `None` when the client ends first, or
/// sends too much.
async fn read_head(stream: &Stream) -> Option<String> {
    const END: &[u8] = b"\r\n\r\n";
    let mut buf = vec![0; HEAD_BYTES];
    let mut len = 0;
    while len < buf.len() {
        let (received, back) = stream.recv(buf, len).await;
        buf = back;
        let from = len.saturating_sub(END.len() - 1);
        match received {
            Ok(bytes) if bytes > 0 => len += bytes,
            _ => return None,
        }
        if let Some(end) = buf[from..len].windows(END.len()).position(|four| four == END) {
            return Some(String::from_utf8_lossy(&buf[..from + end]).into_owned());
        }
    }
    None
}

/// The whole answer to a request with this head.
fn reply_to(head: &str, site: &Site) -> Vec<u8> {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    if !is_http {
        let line = "this is a listener for HTTP/1.1";
        return Response::refusal("400 Bad Request", line).bytes(true);
    }
    if !matches!(method, "GET" | "HEAD") {
        let refusal = Response::refusal("405 Method Not Allowed", "use GET");
        return refusal.with_header("Allow", "GET, HEAD").bytes(true);
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let request = Request {
        path: path.to_owned(),
        query: query.to_owned(),
        headers: lines.filter_map(header).collect(),
    };
    site(&request).bytes(method == "GET")
}

#[cfg(test)]
mod tests;
