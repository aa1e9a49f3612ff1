//! The web page of a serving process (`serve --web`): what its pools do, to look at.
//!
//! What enters: the pools, once a second. What leaves: one page that asks for nothing outside of
//! it, and its data as JSON. What always holds: nothing here changes a pool; without the token,
//! where there is one, no data leaves. Who calls: the serving process. `docs/web.md` has more.

mod access;
mod history;
mod page;
mod state;

use std::rc::Rc;

use forebay_rt as rt;
use forebay_units::Nanos;

use crate::http::{Response, Site};

pub use access::{Access, Token};
pub use state::{Source, State};

/// Between two points of the charts.
const SAMPLE_INTERVAL: Nanos = Nanos::from_secs(1);

/// Answers requests for the page and for what `state` knows, as `access` allows.
#[must_use]
pub fn web_site(state: Rc<State>, access: Access) -> Site {
    let page = page::Page::new();
    Rc::new(move |request| {
        let answer = match (access.check(request), request.path.as_str()) {
            (Err(refusal), _) => refusal,
            (Ok(_), "/") => Response::ok("text/html; charset=utf-8", page.text.clone()),
            (Ok(false), "/state.json") => {
                Response::refusal("401 Unauthorized", "the token is missing or wrong")
                    .with_header("WWW-Authenticate", "Bearer realm=\"forebay\"")
            }
            (Ok(true), "/state.json") => {
                Response::ok("application/json", state.json(after(&request.query)))
            }
            _ => Response::refusal("404 Not Found", "the page is at /"),
        };
        page.secured(answer)
    })
}

/// The time of the last point that a page has, from `after=SECONDS`.
fn after(query: &str) -> u64 {
    let value = query.split('&').find_map(|part| part.strip_prefix("after="));
    value.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Notes what happens, for the charts, as long as the process lives.
pub async fn keep_noting(state: Rc<State>) {
    loop {
        state.note();
        rt::sleep(SAMPLE_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests;
