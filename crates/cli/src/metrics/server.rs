//! The listener for metrics: HTTP as far as a scrape needs it.
//!
//! What always holds: a client that is slow, floods or hangs loses its connection, and takes
//! neither memory nor time from others. One request a connection.

use std::cell::Cell;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::net::{Listener, Stream};
use forebay_units::Nanos;

use super::exposition::Format;
use crate::log;

/// Connections at a time. Further ones are closed at once.
const CONNECTIONS_MAX: usize = 16;
/// Longest head of a request.
const HEAD_BYTES: usize = 8 << 10;
/// How long a client may take for a request, and for an answer.
const CLIENT_TIMEOUT: Nanos = Nanos::from_secs(10);
/// Before a listener that failed is asked again.
const ACCEPT_RETRY: Nanos = Nanos::from_millis(200);

/// What gives the metrics.
pub type Source = Rc<dyn Fn(Format) -> String>;

/// Answers every scrape with what `source` gives.
pub async fn serve_metrics(listener: Listener, source: Source) {
    let open = Rc::new(Cell::new(0usize));
    loop {
        match listener.accept().await {
            Ok(stream) if open.get() < CONNECTIONS_MAX => {
                let (open, source) = (open.clone(), source.clone());
                open.set(open.get() + 1);
                rt::spawn(async move {
                    answer(&stream, &source).await;
                    stream.shutdown();
                    open.set(open.get() - 1);
                });
            }
            Ok(stream) => stream.shutdown(),
            Err(error) => {
                // Mostly for want of descriptors: the end of a connection frees one.
                log::warning(&format!("{}: cannot accept: {error}", listener.address()));
                rt::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Reads a request and answers it.
async fn answer(stream: &Stream, source: &Source) {
    let Ok(head) = rt::timeout(CLIENT_TIMEOUT, Box::pin(read_head(stream))).await else { return };
    let Some(head) = head else { return };
    let reply = reply_to(&head, source);
    let _ = rt::timeout(CLIENT_TIMEOUT, Box::pin(stream.send_all(reply))).await;
}

/// The head of a request: what comes before an empty line. `None` when the client ends first, or
/// sends too much.
async fn read_head(stream: &Stream) -> Option<String> {
    let mut buf = vec![0; HEAD_BYTES];
    let mut len = 0;
    while len < buf.len() {
        let (received, back) = stream.recv(buf, len).await;
        buf = back;
        match received {
            Ok(bytes) if bytes > 0 => len += bytes,
            _ => return None,
        }
        let text = String::from_utf8_lossy(&buf[..len]);
        if let Some(end) = text.find("\r\n\r\n") {
            return Some(text[..end].to_owned());
        }
    }
    None
}

/// The whole answer to a request with this head.
fn reply_to(head: &str, source: &Source) -> Vec<u8> {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    let accept = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("accept").then(|| value.trim())
    });
    let path = target.split('?').next().unwrap_or_default();
    let plain = |status: &str, text: &str| reply(status, "text/plain; charset=utf-8", text, true);
    match (is_http, method, path) {
        (false, ..) => plain("400 Bad Request", "this is a listener for HTTP/1.1\n"),
        (_, "GET" | "HEAD", "/metrics") => {
            let format = Format::accepted(accept.unwrap_or_default());
            reply("200 OK", format.content_type(), &source(format), method == "GET")
        }
        (_, "GET" | "HEAD", _) => plain("404 Not Found", "the metrics are at /metrics\n"),
        _ => plain("405 Method Not Allowed", "use GET\n"),
    }
}

fn reply(status: &str, content_type: &str, body: &str, with_body: bool) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let body = if with_body { body } else { "" };
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_rt::Runtime;
    use forebay_rt::net;

    fn source() -> Source {
        Rc::new(|format| format!("{format:?}\n"))
    }

    fn said(head: &str) -> String {
        String::from_utf8(reply_to(head, &source())).unwrap()
    }

    #[test]
    fn a_scrape_gets_the_format_that_it_asks_for() {
        let plain = said("GET /metrics HTTP/1.1\r\nHost: x");
        assert!(plain.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"));
        assert!(plain.ends_with("\r\n\r\nPrometheus\n"));
        let open = said("GET /metrics?x=1 HTTP/1.1\r\naccept: application/openmetrics-text");
        assert!(open.ends_with("\r\n\r\nOpenMetrics\n"), "{open}");
        let head = said("HEAD /metrics HTTP/1.1");
        assert!(head.contains("Content-Length: 11\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn what_is_no_scrape_is_refused() {
        for (head, status) in [
            ("GET / HTTP/1.1", "404"),
            ("POST /metrics HTTP/1.1", "405"),
            ("GET /metrics", "400"),
            ("", "400"),
            ("\u{fffd}\u{fffd} \u{fffd} \u{fffd}", "400"),
        ] {
            assert!(said(head).starts_with(&format!("HTTP/1.1 {status} ")), "{head:?}");
        }
    }

    #[test]
    fn a_slow_or_endless_client_loses_its_connection() {
        Runtime::simulated(1).block_on(async {
            for bytes in [&b"GET /metrics HT"[..], &[b'x'; 3 * HEAD_BYTES][..]] {
                let (client, server) = net::pair();
                let done = rt::spawn(async move {
                    answer(&server, &source()).await;
                    server.shutdown();
                });
                let sent = rt::spawn(async move {
                    let _ = client.send_all(bytes.to_vec()).await;
                    client
                });
                done.await;
                assert!(rt::now() < Nanos::from_secs(21));
                drop(sent);
            }
        });
    }
}
