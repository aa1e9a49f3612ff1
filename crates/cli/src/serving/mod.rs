//! Serving process (`forebay serve`, `forebay up`): listeners, control socket, a clean end.
//!
//! Without options it listens on loopback and in the owner's folder only. The first signal answers
//! requests in flight and closes the pools; the second ends the process at once. Neither loses an
//! acknowledged write.

mod addresses;
mod attached;
mod hints;
mod live;
mod machines;
mod pages;
pub mod watch;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;
use std::rc::Rc;

use forebay_nbd::{AllowList, Limits, Server, TlsConfig, TlsFiles};
use forebay_rt::net::Listener;
use forebay_rt::sys::{effective_uid, interrupt_self};
use forebay_units::Nanos;

use crate::args::{ListenAddress, SecurityArgs, listen_address};
use crate::clock;
use crate::control::serve_control;
use crate::drives::keep_reading;
use crate::failure::{ErrorCode, Failure};
use crate::hooks::{EventFeed, Hooks};
use crate::log;
use crate::notify::Notify;
use crate::open_files;
use crate::pools::PoolSet;
use crate::service_manager::ServiceManager;
use crate::signals::Stop;
use crate::state::StateDir;
use crate::terminal::Screen;
use crate::top::{KEYS_INTERVAL, Key, LocalView};

pub use addresses::refuse_long;
use addresses::{refuse_other_files, until_free};
pub use hints::connect_hints;
pub use pages::page_access;

/// The port of NBD by convention.
pub const NBD_PORT: u16 = 10809;
/// How long clients may take to receive the replies of their last requests.
pub const REPLY_TIMEOUT: Nanos = Nanos::from_secs(10);
/// The longest path of a Unix socket that the kernel takes.
const SOCKET_PATH_MAX_BYTES: usize = 107;
/// Between two live lines.
const LIVE_INTERVAL: Nanos = Nanos::from_secs(1);

/// A set of pools that is being served.
pub struct Serving {
    /// The pools.
    pub set: Rc<PoolSet>,
    /// Standard output.
    pub screen: Rc<Screen>,
    server: Rc<Server>,
    machines: Option<Rc<forebay_vhost::Server>>,
    stop: Rc<Stop>,
    hooks: Rc<Hooks>,
    limits: Limits,
    plaintext: bool,
    inherited: Vec<Listener>,
    manager: Rc<ServiceManager>,
    wants_view: bool,
    notify: Notify,
}

impl Serving {
    /// Opens the control socket: from now on commands reach `set` here, and messages are lines of
    /// a log.
    pub fn new(set: Rc<PoolSet>, state: &StateDir, stop: Rc<Stop>) -> Result<Self, Failure> {
        log::become_server();
        let path = state.control_socket(std::process::id());
        if path.as_os_str().len() > SOCKET_PATH_MAX_BYTES {
            let message = format!("control socket {}: {}", path.display(), long_path(&path));
            return Err(Failure::new(ErrorCode::StateFolder, message)
                .with_hint("set FOREBAY_STATE_DIR to a shorter path"));
        }
        let listener = Listener::bind_unix(&path, 0o600)
            .map_err(|e| Failure::io(format!("control socket {}", path.display()), &e))?;
        forebay_rt::spawn(keep_reading(set.clone()));
        forebay_rt::spawn(serve_control(listener, set.clone(), effective_uid()));
        let limits = Limits::default();
        let server = Server::new(set.clone(), limits);
        let manager = ServiceManager::watched_at(path);
        let (screen, hooks) = (Rc::new(Screen::stdout()), Hooks::new(state.path().join("hooks")));
        Ok(Self {
            set,
            screen,
            server,
            machines: None,
            stop,
            hooks,
            limits,
            plaintext: false,
            inherited: Vec::new(),
            manager,
            wants_view: false,
            notify: Notify::default(),
        })
    }

    /// The same with listeners that the service manager has handed over.
    #[must_use]
    pub fn inheriting(mut self, listeners: Vec<Listener>) -> Self {
        self.inherited = listeners;
        self
    }

    /// The same with places that events are told to.
    #[must_use]
    pub fn telling(mut self, notify: Notify) -> Self {
        self.notify = notify;
        self
    }

    /// The same with a full screen on the terminal, if `wanted` and if there is one.
    #[must_use]
    pub fn viewed(mut self, wanted: bool) -> Self {
        self.wants_view = wanted && self.screen.is_terminal();
        self
    }

    /// Tells the service manager what is being done.
    pub fn status(&self, status: &str) {
        self.manager.status(status);
    }

    /// Tells the service manager that clients are served.
    pub fn ready(&self) {
        self.manager.ready(&self.summary());
    }

    /// What is served, in a few words.
    fn summary(&self) -> String {
        let pools = self.set.pools();
        let names: Vec<String> = pools.iter().map(|pool| pool.name()).collect();
        let worst = pools.iter().map(|pool| pool.summary().health).max();
        let worst = worst.map_or(String::new(), |health| format!(" ({})", health.as_str()));
        let machines = self.machines.as_ref().map_or(0, |machines| machines.connections());
        let clients = self.server.connections() + machines;
        let served = if names.is_empty() { "no pool".to_owned() } else { names.join(", ") };
        format!("serving {served}{worst}; {clients} client{}", if clients == 1 { "" } else { "s" })
    }

    /// The same with the TLS that `args` name, the clients of `allow`, and `limits`. To be called
    /// before [`Serving::listen`].
    pub fn secured(
        mut self,
        args: &SecurityArgs,
        allow: Option<AllowList>,
        limits: Limits,
    ) -> Result<Self, Failure> {
        self.plaintext = args.plaintext;
        let limits = open_files::within(limits);
        self.limits = limits;
        self.server = match tls_config(args, allow)? {
            Some(tls) => Server::with_tls(self.set.clone(), limits, tls),
            None => Server::new(self.set.clone(), limits),
        };
        Ok(self)
    }

    /// Whether clients must use TLS.
    #[must_use]
    pub fn demands_tls(&self) -> bool {
        self.server.requires_tls()
    }

    /// Listens on the inherited sockets and the addresses `asked`, or on the default ones when
    /// there are neither. Reports and returns the addresses.
    pub fn listen(
        &mut self,
        asked: &[ListenAddress],
        state: &StateDir,
    ) -> Result<Vec<String>, Failure> {
        let mut listeners = Vec::new();
        let tls = self.demands_tls();
        let missing = self.not_inherited(asked);
        for address in missing.iter().chain(&self.inherited_addresses()) {
            refuse_exposed(address, tls, self.plaintext)?;
        }
        for listener in self.inherited.drain(..) {
            listeners.push(self.server.listen(listener));
        }
        for address in &missing {
            if address.is_exposed() && !tls {
                log::warning(&format!(
                    "other machines can reach {address}, without encryption and without \
                     authentication; use it on trusted networks only"
                ));
            }
            listeners.push(bind(&self.server, address)?);
        }
        if listeners.is_empty() {
            listeners = self.listen_default(state)?;
        }
        for address in &listeners {
            self.screen.say(&format!("listening on {address}"));
        }
        if let Some(machines) = &self.machines {
            machines.update();
        }
        let server = Rc::downgrade(&self.server);
        self.set.set_kernel_front(move |stream| {
            // Without a server, or without room, the connection ends.
            let _ = server.upgrade().map(|server| server.adopt_for_kernel(stream));
        });
        let control = state.control_socket(std::process::id());
        forebay_rt::spawn(
            attached::Keeper::new(self.set.clone(), control, self.stop.clone()).run(),
        );
        self.set.announce(listeners.clone());
        Ok(listeners)
    }

    /// Serves virtual machines by sockets in `folder`, one a volume.
    pub fn serve_machines(&mut self, folder: &Path) -> Result<(), Failure> {
        self.machines = Some(machines::server(&self.set, folder)?);
        self.screen.say(&format!(
            "virtual machines connect at {}/POOL/VOLUME.sock (vhost-user-blk)",
            folder.display()
        ));
        Ok(())
    }

    /// Those of the addresses `asked` that are not among the inherited ones.
    fn not_inherited(&self, asked: &[ListenAddress]) -> Vec<ListenAddress> {
        let inherited = self.inherited_addresses();
        asked.iter().filter(|address| !inherited.contains(address)).cloned().collect()
    }

    fn inherited_addresses(&self) -> Vec<ListenAddress> {
        self.inherited.iter().filter_map(|l| listen_address(l.address()).ok()).collect()
    }

    /// Listens on a Unix socket in the state folder and on loopback. When another server has the
    /// socket, this one gets a socket of its own. When the port is taken, the socket alone will do.
    fn listen_default(&self, state: &StateDir) -> Result<Vec<String>, Failure> {
        let [shared, loopback] = default_addresses(state);
        let own = format!("nbd-{}.sock", std::process::id());
        let own = ListenAddress::Unix(state.path().join(own));
        let first = match try_bind(&self.server, &shared) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => bind(&self.server, &own)?,
            other => other.map_err(|e| cannot_listen("--listen", &shared, &e))?,
        };
        let mut listeners = vec![first];
        match try_bind(&self.server, &loopback) {
            Ok(address) => listeners.push(address),
            Err(e) => log::warning(&format!(
                "{loopback} is not available ({e}); serving on the Unix socket only"
            )),
        }
        Ok(listeners)
    }

    /// Fails when one of the addresses `asked` is taken or may not be used. To be called before
    /// pools are created and opened in vain.
    pub async fn check_free(
        &self,
        asked: &[ListenAddress],
        state: &StateDir,
    ) -> Result<(), Failure> {
        for address in &self.inherited_addresses() {
            refuse_exposed(address, self.demands_tls(), self.plaintext)?;
        }
        for address in &self.not_inherited(asked) {
            refuse_exposed(address, self.demands_tls(), self.plaintext)?;
            wait_for_address(address).await?;
        }
        if asked.is_empty() && self.inherited.is_empty() {
            // Others will do when one of them is taken.
            for address in default_addresses(state) {
                let _ = until_free(&address).await;
            }
        }
        Ok(())
    }

    /// Serves until a signal comes, then ends cleanly. Reports changes of health, and clients that
    /// it disconnects, and runs the hooks.
    pub async fn run(self) -> Result<(), Failure> {
        let mut live = live::Live::new();
        let mut watch = watch::Watch::default();
        let mut feed = EventFeed::default();
        let mut view = self.wants_view.then(LocalView::open).flatten();
        while self.stop.unless_asked(self.pause(&mut view)).await.is_some() {
            let events = feed.new_events(&self.set.pools());
            self.notify.offer(&events);
            self.hooks.offer(events);
            for (level, line) in watch.pools(&self.set.pools()) {
                self.screen.clear();
                log::report(level, &line);
            }
            let max = self.limits.connections_max;
            if let Some(line) =
                watch.clients(|| self.server.take_offenses(), max, forebay_rt::now())
            {
                self.screen.clear();
                log::warning(&line);
            }
            if let Some(machines) = &self.machines {
                for line in machines::look(machines) {
                    self.screen.clear();
                    log::warning(&line);
                }
            }
            self.manager.status(&self.summary());
            if self.screen.is_terminal() && view.is_none() {
                let width = self.screen.width();
                self.screen.show(&live.next(&self.set, self.server.connections(), width));
            }
        }
        drop(view);
        self.screen.clear();
        self.end().await
    }

    /// Waits for the next live line; with a full screen, draws that meanwhile.
    async fn pause(&self, view: &mut Option<LocalView>) {
        let end = forebay_rt::now() + LIVE_INTERVAL;
        if let Some(view) = view {
            view.add(&self.set.pools());
        }
        while let Some(shown) = view {
            match shown.show() {
                Some(Key::Interrupt) => {
                    *view = None;
                    return interrupt_self();
                }
                Some(_) => *view = None,
                None if forebay_rt::now() >= end => return,
                None => forebay_rt::sleep(KEYS_INTERVAL).await,
            }
        }
        forebay_rt::sleep_until(end).await;
    }

    /// Ends cleanly: answers what is in flight, and closes the pools. They stay known.
    pub async fn end(self) -> Result<(), Failure> {
        self.screen.say(&format!(
            "stopping ({}): answering requests in flight, then closing the pools (Ctrl-C: at once)",
            self.stop.by()
        ));
        self.manager.stopping("answering requests in flight, then closing the pools");
        for volume in self.set.kernel_connections().volumes() {
            self.screen.say(&format!("{volume} is attached: its users wait for the next server"));
        }
        self.end_fronts().await;
        self.set.close().await?;
        self.screen.say("stopped: the pools are closed, and everything is on the devices");
        Ok(())
    }

    /// Ends everything that clients reach volumes by.
    async fn end_fronts(&self) {
        let machines = async {
            if let Some(machines) = &self.machines {
                machines.stop(REPLY_TIMEOUT).await;
            }
        };
        // A volume whose requests hang is closed by the pool.
        let ublk = forebay_rt::timeout(REPLY_TIMEOUT, Box::pin(self.set.ublk().end()));
        let server = self.server.stop(REPLY_TIMEOUT);
        // Requests that wait for a suspended pool fail then. Each front has to know before that it
        // ends, because then it leaves them to the next server where the kernel, or a virtual
        // machine, keeps them for it.
        let give_up = async { self.set.give_up_suspended() };
        let (fronts, last) = (forebay_rt::join(machines, ublk), forebay_rt::join(server, give_up));
        let _ = forebay_rt::join(fronts, last).await;
    }
}

/// Waits until the listener of a killed process is gone. Fails when a server has `address`.
pub async fn wait_for_address(address: &ListenAddress) -> Result<(), Failure> {
    until_free(address).await.map_err(|e| cannot_listen("--listen", address, &e))
}

/// Lets `server` listen on an address that was asked for. Returns it as text.
pub fn bind(server: &Rc<Server>, address: &ListenAddress) -> Result<String, Failure> {
    try_bind(server, address).map_err(|e| cannot_listen("--listen", address, &e))
}

fn try_bind(server: &Rc<Server>, address: &ListenAddress) -> io::Result<String> {
    match address {
        ListenAddress::Unix(path) => {
            refuse_other_files(path)?;
            server.listen_unix(&std::path::absolute(path)?, 0o600)
        }
        ListenAddress::Tcp(address) => server.listen_tcp(*address),
    }
}

/// The TLS that `args` name, with the clients of `allow`; `None` for plain text.
pub fn tls_config(
    args: &SecurityArgs,
    allow: Option<AllowList>,
) -> Result<Option<TlsConfig>, Failure> {
    args.check(allow.is_some())?;
    let (Some(cert), Some(key)) = (args.tls_cert.clone(), args.tls_key.clone()) else {
        return Ok(None);
    };
    let (client_ca, list_file) = (args.tls_ca.clone(), args.tls_allow.clone());
    let config = TlsConfig::read(&TlsFiles { cert, key, client_ca, allow: list_file });
    let config = match (config, allow) {
        (Ok(config), Some(list)) => config.with_allow_list(list),
        (config, _) => config,
    };
    let config = config.map_err(|e| Failure::new(ErrorCode::TlsConfig, e))?;
    let valid_secs = config.valid_secs();
    if let Some(why) = out_of_time(&valid_secs, clock::now_secs()) {
        let cert = args.tls_cert.iter().map(|path| path.display().to_string()).collect::<String>();
        log::warning(&format!("the certificate {cert} {why}: clients refuse it"));
    }
    Ok(Some(config))
}

/// Why a certificate that is valid at these times is not valid `now`.
fn out_of_time(valid_secs: &RangeInclusive<i64>, now: u64) -> Option<String> {
    let at = |secs: i64| clock::local_time(secs.try_into().unwrap_or(0));
    let (from, until) = (*valid_secs.start(), *valid_secs.end());
    match i64::try_from(now).unwrap_or(i64::MAX) {
        now if now > until => Some(format!("has expired ({})", at(until))),
        now if now < from => Some(format!("is not valid yet (from {})", at(from))),
        _ => None,
    }
}

/// A Unix socket in the state folder, and the port of NBD on loopback.
fn default_addresses(state: &StateDir) -> [ListenAddress; 2] {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, NBD_PORT));
    [ListenAddress::Unix(state.nbd_socket()), ListenAddress::Tcp(loopback)]
}

fn long_path(path: &Path) -> String {
    format!(
        "its path has {} bytes, and a socket's may have {SOCKET_PATH_MAX_BYTES}",
        path.as_os_str().len()
    )
}

/// Fails for an address that other machines can reach without TLS, unless `plaintext` allows it.
pub fn refuse_exposed(address: &ListenAddress, tls: bool, plaintext: bool) -> Result<(), Failure> {
    if tls || plaintext || !address.is_exposed() {
        return Ok(());
    }
    let message = format!(
        "other machines can reach {address}, and without TLS every one of them may read and write \
         what is served"
    );
    Err(Failure::usage(message).with_hint(
        "give --tls-cert and --tls-key (and --tls-ca), or --plaintext on a trusted network",
    ))
}

/// The refusal of an address that `option` has asked for.
fn cannot_listen(option: &str, address: &ListenAddress, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another server has it; use {option} with another address")
        }
        io::ErrorKind::PermissionDenied => {
            format!("choose an address that you may use, with {option}")
        }
        _ => format!("choose another address with {option}"),
    };
    let message = format!("cannot listen on {address} ({error})");
    Failure::new(ErrorCode::CannotListen, message).with_hint(hint)
}

#[cfg(test)]
mod tests;
