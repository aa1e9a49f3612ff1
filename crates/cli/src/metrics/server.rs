//! The listener for metrics: what a scrape gets.

use std::rc::Rc;

use super::exposition::Format;
use crate::http::{Response, Site};

/// What gives the metrics.
pub type Source = Rc<dyn Fn(Format) -> Vec<u8>>;

/// Answers scrapes with what `source` gives.
#[must_use]
pub fn metrics_site(source: Source) -> Site {
    Rc::new(move |request| match request.path.as_str() {
        "/metrics" => {
            let format = Format::accepted(request.header("accept").unwrap_or_default());
            Response::ok(format.content_type(), source(format))
        }
        _ => Response::refusal("404 Not Found", "the metrics are at /metrics"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Request;

    const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

    fn answer(path: &str, accept: &str) -> Response {
        let site = metrics_site(Rc::new(|format| format!("{format:?}\n").into_bytes()));
        let headers = vec![("accept".to_owned(), accept.to_owned())];
        site(&Request { path: path.to_owned(), query: String::new(), headers })
    }

    #[test]
    fn a_scrape_gets_the_format_that_it_asks_for() {
        let plain = answer("/metrics", "");
        assert_eq!((plain.content_type, &*plain.body), (PLAIN, &b"Prometheus\n"[..]));
        let open = answer("/metrics", "application/openmetrics-text");
        assert_eq!(open.body, b"OpenMetrics\n");
        assert!(answer("/", "").status.starts_with("404"));
    }
}
