//! Access to pools: through the process that serves them, or by opening them in this process.
//!
//! What enters: names of pools, and requests. What leaves: replies. What always holds: a request
//! has the same effect on either route; a pool that this process opened is closed by
//! [`PoolHandle::close`]. Who calls: every command on pools and volumes.

mod known;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_pool::spec::ImportOptions;
use forebay_pool::status::FoundPool;
use forebay_pool::{Pool, ReceiveOptions, SendOptions};
use forebay_units::Nanos;

use crate::control::{Action, Link, PROTOCOL_VERSION, ReceivedStream, Reply, Request};
use crate::devices::FileOpener;
use crate::failure::{ErrorCode, Failure};
use crate::holders::holders;
use crate::pools::PoolSet;
use crate::signals::Stop;
use crate::state::{KnownPool, StateDir};
use crate::terminal::{Screen, with_waiting_line};
use crate::transfer::{Incoming, Outgoing, RemoteReceive, RemoteSend};

use known::COMMAND_WAIT;
pub use known::{KNOWN_POOL_OPTIONS, SERVE_WAIT, import_known};

/// How long a command waits for a server that has its pool's devices, and does not serve the pool
/// yet, or no longer.
const SERVER_WAIT: Nanos = Nanos::from_secs(30);

/// The state folder, and the servers that run on it.
pub struct PoolAccess {
    state: StateDir,
    links: Vec<Rc<Link>>,
    typed: String,
    stop: Option<Rc<Stop>>,
}

/// One pool, as a command gets at it.
pub struct PoolHandle {
    pool: String,
    typed: String,
    route: Route,
    stop: Option<Rc<Stop>>,
}

#[derive(Clone)]
enum Route {
    Server(Rc<Link>),
    Local(Rc<PoolSet>),
}

impl PoolAccess {
    /// Connects to the servers. `stop` is how the operator ends a command that waits.
    pub async fn new(state: StateDir, stop: Option<Rc<Stop>>) -> Result<Self, Failure> {
        let mut links = Vec::new();
        for (pid, path) in state.control_sockets()? {
            let what = format!("waiting for the server (process {pid})");
            match with_waiting_line(&what, false, Link::connect(&path)).await? {
                Some(link) => links.push(Rc::new(link)),
                // A server that is just starting has bound its socket and does not listen yet.
                None if Path::new(&format!("/proc/{pid}")).exists() => {}
                None => state.forget_socket(&path),
            }
        }
        Ok(Self { state, links, typed: typed_command(), stop })
    }

    /// The state folder.
    #[must_use]
    pub fn state(&self) -> &StateDir {
        &self.state
    }

    /// Ctrl-C and SIGTERM, for commands that wait. Panics for a command without signals.
    #[must_use]
    pub fn stop(&self) -> Rc<Stop> {
        self.stop.clone().expect("a command that waits is given signals by run::execute")
    }

    /// Fails when the operator has asked for the end: then nothing more is begun.
    pub fn check_not_interrupted(&self) -> Result<(), Failure> {
        match &self.stop {
            Some(stop) if stop.is_asked() => {
                Err(interrupted("interrupted: what was begun is done, and nothing more"))
            }
            _ => Ok(()),
        }
    }

    /// The pools on `paths`. Shows a waiting line when it takes long, and gives up on Ctrl-C.
    pub async fn discover(&self, paths: &[String]) -> Result<Vec<FoundPool>, Failure> {
        let looking = Pool::discover(Rc::new(FileOpener), paths);
        let looking = with_waiting_line("looking for pools", false, looking);
        let found = unless_asked(&self.stop, looking).await;
        found.ok_or_else(|| interrupted("interrupted; nothing was done"))
    }

    /// A request that goes into the pool's history as this command, unless it only looks.
    #[must_use]
    pub fn request(&self, pool: &str, action: Action) -> Request {
        request(pool, &self.typed, action)
    }

    fn serving(&self, pool: &str) -> Option<Rc<Link>> {
        self.links.iter().find(|l| l.hello.pools.iter().any(|p| p == pool)).cloned()
    }

    /// The id of the process that serves `pool`, if any.
    #[must_use]
    pub fn server_of(&self, pool: &str) -> Option<u32> {
        self.serving(pool).map(|link| link.hello.pid)
    }

    /// Whether a server takes pools that are created or imported.
    #[must_use]
    pub fn has_server_for_more(&self) -> bool {
        self.links.iter().any(|link| link.hello.takes_more)
    }

    /// The pools that are known or served: all of them, or those `wanted`, which must exist.
    pub fn names(&self, wanted: &[String]) -> Result<Vec<String>, Failure> {
        let mut names: Vec<String> =
            self.state.known_pools()?.into_iter().map(|pool| pool.name).collect();
        names.extend(self.links.iter().flat_map(|link| link.hello.pools.clone()));
        names.sort();
        names.dedup();
        if wanted.is_empty() {
            return Ok(names);
        }
        match wanted.iter().find(|name| !names.contains(name)) {
            Some(name) => Err(no_such_pool(name)),
            None => Ok(wanted.to_vec()),
        }
    }

    /// The pool `name`. Without a server, this process imports it until [`PoolHandle::close`].
    pub async fn open(&self, name: &str) -> Result<PoolHandle, Failure> {
        self.check_not_interrupted()?;
        let (pool, typed, stop) = (name.to_owned(), self.typed.clone(), self.stop.clone());
        if let Some(link) = self.serving(name) {
            return Ok(PoolHandle { pool, typed, route: Route::Server(link), stop });
        }
        let what = format!("opening '{name}'");
        let opening = with_waiting_line(&what, false, self.route_to(name));
        let route = unless_asked(&stop, opening).await.ok_or_else(|| {
            interrupted(&format!("interrupted while '{name}' was being opened; nothing was done"))
        })??;
        Ok(PoolHandle { pool, typed, route, stop })
    }

    /// Whether another process has the devices of the pool `name`, and does not serve it here.
    pub async fn is_held(&self, name: &str) -> Result<bool, Failure> {
        let known = self.state.known_pools()?.into_iter().find(|pool| pool.name == name);
        let Some(known) = known.filter(|_| self.serving(name).is_none()) else { return Ok(false) };
        Ok(!holders(&known.devices).await.is_empty())
    }

    /// The way to a pool that no server had when this command looked for servers.
    async fn route_to(&self, name: &str) -> Result<Route, Failure> {
        let known = self.state.known_pools()?.into_iter().find(|pool| pool.name == name);
        let known = known.ok_or_else(|| no_such_pool(name))?;
        if let Some(link) = self.serving_by_now(&known).await? {
            return Ok(Route::Server(link));
        }
        let set = PoolSet::new(Rc::new(FileOpener), self.state.clone(), self.stop.clone());
        let options = ImportOptions { for_command: true, ..KNOWN_POOL_OPTIONS };
        let importing = Box::pin(import_known(&set, &known, &options, COMMAND_WAIT));
        let Err(failure) = importing.await else { return Ok(Route::Local(set)) };
        if failure.code == ErrorCode::DeviceInUse {
            // A server may have taken it first.
            if let Some(link) = self.serving_by_now(&known).await? {
                return Ok(Route::Server(link));
            }
        }
        Err(failure)
    }

    /// The server that has a known pool by now. Waits for one that is about to open the pool, or to
    /// close it.
    async fn serving_by_now(&self, known: &KnownPool) -> Result<Option<Rc<Link>>, Failure> {
        const POLL_INTERVAL: Nanos = Nanos::from_millis(50);
        let until = forebay_rt::now() + SERVER_WAIT;
        while let Some(path) = self.holding_server(known).await? {
            if let Some(link) = Link::connect(&path).await? {
                if link.hello.pools.contains(&known.name) {
                    return Ok(Some(Rc::new(link)));
                }
            }
            if forebay_rt::now() >= until {
                break;
            }
            forebay_rt::sleep(POLL_INTERVAL).await;
        }
        Ok(None)
    }

    /// The control socket of the server that has the devices of a known pool locked, if any has.
    async fn holding_server(&self, known: &KnownPool) -> Result<Option<PathBuf>, Failure> {
        let holders = holders(&known.devices).await;
        let sockets = self.state.control_sockets()?.into_iter();
        let mut held = sockets.filter(|(pid, _)| holders.iter().any(|holder| holder.pid == *pid));
        Ok(held.next().map(|(_, path)| path))
    }

    /// A pool that is about to be created or imported: at a server that takes it, or here.
    #[must_use]
    pub fn for_new_pool(&self, name: &str) -> PoolHandle {
        let (pool, typed, stop) = (name.to_owned(), self.typed.clone(), self.stop.clone());
        match self.links.iter().find(|link| link.hello.takes_more) {
            Some(link) => PoolHandle { pool, typed, route: Route::Server(link.clone()), stop },
            None => {
                let set = PoolSet::new(Rc::new(FileOpener), self.state.clone(), self.stop.clone());
                PoolHandle { pool, typed, route: Route::Local(set), stop }
            }
        }
    }

    /// Sends one request to the pool `name`.
    pub async fn ask(&self, name: &str, action: Action) -> Result<Reply, Failure> {
        let handle = self.open(name).await?;
        let outcome = handle.ask(action).await;
        handle.close_after(outcome).await
    }
}

impl PoolHandle {
    /// Sends one request. On Ctrl-C a server goes on with what it was asked. Work in this process
    /// is given up where that leaves nothing half done (an import, writing a new log device
    /// through); other work comes to its end first.
    pub async fn ask(&self, action: Action) -> Result<Reply, Failure> {
        let request = request(&self.pool, &self.typed, action);
        // A command that goes on asking after Ctrl-C cleans up: it is not interrupted again.
        let stop = self.stop.clone().filter(|stop| !stop.is_asked());
        match &self.route {
            Route::Server(link) => self.ask_server(link, &request, &stop).await,
            // On the heap: what a pool does is large, and every caller above would hold a copy.
            Route::Local(set) => Box::pin(self.ask_here(set, &request, &stop)).await,
        }
    }

    async fn ask_server(
        &self,
        link: &Link,
        request: &Request,
        stop: &Option<Rc<Stop>>,
    ) -> Result<Reply, Failure> {
        let pid = link.hello.pid;
        let what = format!("waiting for the server (process {pid})");
        let asking = with_waiting_line(&what, false, link.ask(request));
        let Some(reply) = unless_asked(stop, asking).await else {
            if request.action.is_read_only() {
                return Err(interrupted("interrupted; what the server does goes on"));
            }
            let message = format!("interrupted: the server (process {pid}) goes on with it");
            let pool = &self.pool;
            return Err(interrupted(&message)
                .with_hint(format!("'forebay pool history {pool}' shows when it is done")));
        };
        reply
    }

    async fn ask_here(
        &self,
        set: &Rc<PoolSet>,
        request: &Request,
        stop: &Option<Rc<Stop>>,
    ) -> Result<Reply, Failure> {
        let what = doing(&request.action, &self.pool);
        let working = with_waiting_line(&what, true, set.perform(request));
        if matches!(request.action, Action::Import { .. }) {
            return unless_asked(stop, working)
                .await
                .unwrap_or_else(|| Err(interrupted("interrupted: nothing was imported")));
        }
        let mut working = std::pin::pin!(working);
        if let Some(reply) = unless_asked(stop, working.as_mut()).await {
            return reply;
        }
        let screen = Screen::stderr();
        if screen.is_terminal() {
            // Over the live line, and what the terminal has echoed into it.
            screen.show("");
            screen.say("stopping as soon as nothing is half done (Ctrl-C again: at once)");
        }
        working.await
    }

    /// Begins to send. [`PoolStream::end`] comes before [`PoolHandle::close`].
    pub async fn open_send(&self, options: SendOptions) -> Result<PoolStream, Failure> {
        match &self.route {
            Route::Local(set) => {
                Ok(PoolStream::Local(Box::new(set.begin_send(&self.pool, &options)?)))
            }
            Route::Server(link) => {
                let request = request(&self.pool, &self.typed, Action::Send { options });
                Ok(PoolStream::Remote(RemoteSend::begin(link.clone(), &request).await?))
            }
        }
    }

    /// Begins to receive. The sink is ended before [`PoolHandle::close`].
    pub async fn open_receive(
        &self,
        volume: &str,
        options: ReceiveOptions,
    ) -> Result<PoolSink, Failure> {
        let action = Action::Receive { volume: volume.to_owned(), options };
        let request = request(&self.pool, &self.typed, action);
        match &self.route {
            Route::Local(set) => Ok(PoolSink::Local(Box::new(set.begin_receive(&request).await?))),
            Route::Server(link) => {
                Ok(PoolSink::Remote(RemoteReceive::begin(link.clone(), &request).await?))
            }
        }
    }

    /// The same way to the pool, whose requests Ctrl-C does not cut short: for short requests of a
    /// command that looks at [`Stop`] between them and would lose the reply.
    #[must_use]
    pub fn not_interrupted(self) -> Self {
        Self { stop: None, ..self }
    }

    /// The same way to the pool under another name: an import is asked for by guid.
    #[must_use]
    pub fn renamed(&self, name: &str) -> Self {
        let (typed, route, stop) = (self.typed.clone(), self.route.clone(), self.stop.clone());
        Self { pool: name.to_owned(), typed, route, stop }
    }

    /// The id of the process that serves the pool; `None` when this process has opened it.
    #[must_use]
    pub fn server_pid(&self) -> Option<u32> {
        match &self.route {
            Route::Server(link) => Some(link.hello.pid),
            Route::Local(_) => None,
        }
    }

    /// Whether the pool is open in this process.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.route, Route::Local(_))
    }

    /// Closes the pool when this process has opened it. It stays known.
    pub async fn close(self) -> Result<(), Failure> {
        match self.route {
            Route::Server(_) => Ok(()),
            Route::Local(set) => {
                with_waiting_line(&format!("closing '{}'", self.pool), true, set.close()).await
            }
        }
    }

    /// Closes, and gives `outcome` back; a failure to close is reported when nothing failed before.
    pub async fn close_after<T>(self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        let closed = self.close().await;
        let value = outcome?;
        closed.map(|()| value)
    }
}

/// A stream that a pool makes.
pub enum PoolStream {
    /// In this process.
    Local(Box<Outgoing>),
    /// At a server.
    Remote(RemoteSend),
}

/// What takes a stream into a pool.
pub enum PoolSink {
    /// In this process.
    Local(Box<Incoming>),
    /// At a server.
    Remote(RemoteReceive),
}

impl PoolStream {
    /// The next bytes; `None` at the end of a whole stream.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        match self {
            Self::Local(outgoing) => outgoing.next().await,
            Self::Remote(stream) => stream.next().await,
        }
    }

    /// Lets go of the pool.
    pub async fn end(self) {
        if let Self::Local(outgoing) = self {
            outgoing.end().await;
        }
    }
}

impl PoolSink {
    /// Takes the next bytes.
    pub async fn feed(&mut self, bytes: Vec<u8>) -> Result<(), Failure> {
        match self {
            Self::Local(incoming) => incoming.feed(&bytes).await,
            Self::Remote(sink) => sink.feed(bytes).await,
        }
    }

    /// What `input` gives, unless the pool ends the stream before.
    pub async fn unless_ended<T>(&mut self, input: impl Future<Output = T>) -> Result<T, Failure> {
        match self {
            Self::Local(_) => Ok(input.await),
            Self::Remote(sink) => sink.unless_ended(input).await,
        }
    }

    /// At the end of the input: what was received, or why it was not, and what is left.
    pub async fn finish(self) -> Result<ReceivedStream, Failure> {
        match self {
            Self::Local(mut incoming) => match incoming.finish().await {
                Ok(received) => Ok(received),
                Err(failure) => Err(incoming.give_up(failure).await),
            },
            Self::Remote(sink) => sink.finish().await,
        }
    }

    /// Ends the stream, which has failed with `why`. A server says by itself what is left; when the
    /// connection ends it gives the stream up.
    pub async fn give_up(self, why: Failure) -> Failure {
        match self {
            Self::Local(incoming) => incoming.give_up(why).await,
            Self::Remote(_) => why,
        }
    }
}

/// `work`'s result, unless the operator asks for the end first; then `None`, and `work` is dropped.
async fn unless_asked<F: Future>(stop: &Option<Rc<Stop>>, work: F) -> Option<F::Output> {
    match stop {
        Some(stop) => stop.unless_asked(work).await,
        None => Some(work.await),
    }
}

fn interrupted(message: &str) -> Failure {
    Failure::new(ErrorCode::Interrupted, message)
}

/// What is being done, for the waiting line.
fn doing(action: &Action, pool: &str) -> String {
    match action {
        Action::Create { .. } => format!("creating '{pool}', writing its log through"),
        Action::Add { .. } => format!("adding to '{pool}'"),
        Action::Attach { .. } => format!("attaching to '{pool}'"),
        Action::Import { .. } => "importing".to_owned(),
        Action::Export { .. } => format!("exporting '{pool}'"),
        Action::Destroy { .. } => format!("destroying '{pool}'"),
        _ => format!("working on '{pool}'"),
    }
}

fn request(pool: &str, typed: &str, action: Action) -> Request {
    let typed = if action.is_remembered() { typed } else { "" };
    let (pool, typed) = (pool.to_owned(), typed.to_owned());
    Request { version: PROTOCOL_VERSION, pool, typed, action }
}

fn no_such_pool(name: &str) -> Failure {
    Failure::new(ErrorCode::PoolNotFound, format!("no pool named '{name}' is known")).with_hint(
        format!(
            "'forebay pool list' shows the known pools, and 'forebay pool import -d DIR {name}' \
             looks for it"
        ),
    )
}

/// The command as typed, for the history of pools.
fn typed_command() -> String {
    let words = std::env::args_os().skip(1).map(|word| {
        let word = word.to_string_lossy().into_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    let mut text = "forebay".to_owned();
    for word in words {
        text.push(' ');
        text.push_str(&word);
    }
    text
}
