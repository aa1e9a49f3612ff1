//! What a server tells over HTTP: metrics, and the web page.

use std::net::SocketAddr;
use std::rc::Rc;

use forebay_rt::net::Listener;

use super::{Serving, cannot_listen};
use crate::args::{ListenAddress, WebArgs};
use crate::failure::Failure;
use crate::http::serve_http;
use crate::log;
use crate::metrics::{Source, metrics, metrics_site};
use crate::web::{self, Access, State, Token, keep_noting, web_site};

/// Who may read the page that `args` name; `None` when they name none.
pub fn page_access(args: &WebArgs) -> Result<Option<(SocketAddr, Access)>, Failure> {
    let Some(address) = args.address else {
        return match &args.token {
            Some(_) => Err(Failure::usage("a token without a web page")
                .with_hint("give --web 127.0.0.1:8426 as well")),
            None => Ok(None),
        };
    };
    let token = args.token.as_deref().map(Token::read).transpose()?;
    Ok(Some((address, Access::new(address, token)?)))
}

impl Serving {
    /// Answers scrapes at `address`. They show names of pools, volumes and devices.
    pub fn tell_metrics(&self, address: SocketAddr) -> Result<(), Failure> {
        let listener = Listener::bind_tcp(address)
            .map_err(|e| cannot_listen("--metrics", &ListenAddress::Tcp(address), &e))?;
        if !address.ip().is_loopback() {
            log::warning(&format!("other machines can read the metrics at {address}"));
        }
        self.screen.say(&format!("metrics at http://{address}/metrics"));
        let (set, server) = (self.set.clone(), self.server.clone());
        let source: Source = Rc::new(move |format| {
            let clients = (server.connections(), &server.counts());
            let classes = set.classes().figures();
            metrics(&set.pools(), set.drives(), (clients, &classes), format)
        });
        forebay_rt::spawn(serve_http(listener, metrics_site(source)));
        Ok(())
    }

    /// Shows the web page that `args` name, if any.
    pub fn show_page(&self, args: &WebArgs) -> Result<(), Failure> {
        let Some((address, access)) = page_access(args)? else { return Ok(()) };
        let listener = Listener::bind_tcp(address)
            .map_err(|e| cannot_listen("--web", &ListenAddress::Tcp(address), &e))?;
        if !address.ip().is_loopback() {
            log::warning(&format!(
                "the page at {address} and its token pass the network without encryption"
            ));
        }
        self.screen.say(&format!("web page at http://{address}/"));
        let (set, server) = (self.set.clone(), self.server.clone());
        let drives = set.clone();
        let state = State::new(web::Source {
            pools: Box::new(move || set.pools()),
            drives: Box::new(move |pool| drives.drives().of(pool)),
            clients: Box::new(move || server.connections()),
        });
        forebay_rt::spawn(keep_noting(state.clone()));
        forebay_rt::spawn(serve_http(listener, web_site(state, access)));
        Ok(())
    }
}
