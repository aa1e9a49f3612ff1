//! `forebay witness`: keeps what a machine under test reports, where its power cut does not reach.
//!
//! What enters: reports over TCP. What leaves: lines of an append-only file, replies, the start of
//! the command that cuts the power. What always holds: a reply leaves after its entry is on disk, a
//! report without one is there within a tenth of a second. Who calls: `crate::run`.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::rc::Rc;

use forebay_qualify::LogDamage;
use forebay_qualify::power_cut::{Entry, Ledger, Message, Reply};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_rt::net::{Listener, Stream};
use forebay_units::Nanos;

use super::outcome::Outcome;
use crate::args::{SecondsRange, WitnessArgs};
use crate::clock;
use crate::control::{REPLY_MAX_BYTES, REQUEST_MAX_BYTES, WireError};
use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::log;
use crate::render::{cut_findings_text, cut_tally_text, document};
use crate::sealed::{Channel, KEY_HINT, KEY_VARIABLE, Key, SealError};
use crate::signals::Signals;
use crate::terminal::Screen;

/// Runs the command.
pub fn witness(
    args: &WitnessArgs,
    runtime: impl FnOnce() -> Result<Runtime, Failure>,
) -> Result<Outcome, Failure> {
    if args.show {
        return show(args);
    }
    let key = Key::find(args.key_file.as_deref())?;
    if key.is_none() && !args.listen.ip().is_loopback() {
        let message = format!("listening on {} takes a key: other machines reach it", args.listen);
        return Err(Failure::usage(message).with_hint(KEY_HINT));
    }
    // Before the runtime has threads: they inherit the signal mask.
    let signals = Signals::take()?;
    let args = args.clone();
    runtime()?.block_on(async move {
        let stop = signals.watch();
        stop.ignore_hangup_without_terminal();
        let book = Book::open(&args, key)?;
        let listener = Listener::bind_tcp(args.listen)
            .map_err(|e| Failure::new(ErrorCode::CannotListen, format!("{}: {e}", args.listen)))?;
        let shown = args.file.display();
        book.screen.say(&format!("listening on {}; {shown} keeps it", listener.address()));
        let served = stop.unless_asked(serve(&listener, &book)).await;
        book.settle()?;
        match served {
            Some(Err(failure)) => Err(failure),
            _ => Ok(Outcome::done()),
        }
    })
}

/// Prints what a file has.
fn show(args: &WitnessArgs) -> Result<Outcome, Failure> {
    let (ledger, damage) = read(args)?;
    let complete = damage.is_none();
    let tally = &ledger.tally;
    if args.json {
        #[derive(serde::Serialize)]
        struct Body<'a> {
            device: Option<&'a str>,
            cycles: u64,
            open: Option<&'a forebay_qualify::power_cut::Cycle>,
            tally: &'a forebay_qualify::power_cut::Tally,
            bound: Option<forebay_qualify::power_cut::LossBound>,
        }
        let body = Body {
            device: ledger.device.as_deref(),
            cycles: ledger.cycles,
            open: ledger.cycle.as_ref(),
            tally,
            bound: tally.bound(),
        };
        return Ok(Outcome { text: document("witness", body), complete });
    }
    let device = ledger.device.as_deref().unwrap_or("none yet");
    let mut text = format!("device       {}\n", crate::escape::visible(device));
    text.push_str(&format!("cycles       {} begun\n", ledger.cycles));
    text.push_str(&cut_tally_text(tally));
    for (damage, count) in &tally.findings.damages {
        text.push_str(&format!("  {:<11}{count}\n", damage.name()));
    }
    Ok(Outcome { text, complete })
}

fn read(args: &WitnessArgs) -> Result<(Ledger, Option<LogDamage>), Failure> {
    let shown = args.file.display();
    let mut bytes = Vec::new();
    let file = files::open_to_read(&args.file).map_err(|e| Failure::io(&shown, &e))?;
    let mut file = file;
    file.read_to_end(&mut bytes).map_err(|e| Failure::io(&shown, &e))?;
    let (ledger, damage) = Ledger::read(&bytes).map_err(|_| {
        let message = format!("{shown} is no file of a witness");
        Failure::new(ErrorCode::Qualify, message).with_hint("name another FILE")
    })?;
    if let Some(LogDamage::Line { number, .. }) = damage {
        log::warning(&format!(
            "{shown}: line {number} is damaged or cut off; the rest is left out"
        ));
    }
    Ok((ledger, damage))
}

/// The witness's memory, its file, and who reports.
struct Book {
    ledger: RefCell<Ledger>,
    file: RefCell<File>,
    name: String,
    /// Levels that were reported and are not in the file yet.
    reported: RefCell<Option<Vec<u64>>>,
    /// The connection that may report: the last one that said hello.
    reporter: RefCell<Option<(u64, Rc<Stream>)>>,
    connections: Cell<u64>,
    screen: Screen,
    cut_command: Option<String>,
    cut_after: SecondsRange,
    /// Machines under test prove that they have it.
    key: Option<Key>,
}

impl Book {
    fn open(args: &WitnessArgs, key: Option<Key>) -> Result<Rc<Self>, Failure> {
        let shown = args.file.display();
        let (ledger, file) = if args.file.exists() {
            let (ledger, damage) = read(args)?;
            let file = files::open_to_append(&args.file).map_err(|e| Failure::io(&shown, &e))?;
            if let Some(LogDamage::Line { good_bytes, .. }) = damage {
                file.set_len(good_bytes as u64).map_err(|e| Failure::io(&shown, &e))?;
            }
            (ledger, file)
        } else {
            let file = files::create_new_private(&args.file);
            (Ledger::default(), file.map_err(|e| Failure::io(&shown, &e))?)
        };
        Ok(Rc::new(Self {
            ledger: RefCell::new(ledger),
            file: RefCell::new(file),
            name: shown.to_string(),
            reported: RefCell::default(),
            reporter: RefCell::default(),
            connections: Cell::new(0),
            screen: Screen::stdout(),
            cut_command: args.cut_command.clone(),
            cut_after: args.cut_after,
            key,
        }))
    }

    /// Writes an entry, behind the levels that were reported, and waits until it is on disk.
    fn enter(&self, entry: &Entry) -> Result<(), Failure> {
        let mut ledger = self.ledger.borrow_mut();
        let mut lines = match self.reported.take() {
            Some(levels) => ledger.append(&Entry::Durable(levels)),
            None => String::new(),
        };
        lines.push_str(&ledger.append(entry));
        self.write(&lines)
    }

    /// Writes the levels that were reported.
    fn settle(&self) -> Result<(), Failure> {
        let Some(levels) = self.reported.take() else { return Ok(()) };
        let line = self.ledger.borrow_mut().append(&Entry::Durable(levels));
        self.write(&line)
    }

    fn write(&self, lines: &str) -> Result<(), Failure> {
        let mut file = self.file.borrow_mut();
        let written = file.write_all(lines.as_bytes()).and_then(|()| file.sync_data());
        written.map_err(|e| Failure::io(&self.name, &e))
    }

    fn is_reporter(&self, connection: u64) -> bool {
        self.reporter.borrow().as_ref().is_some_and(|(id, _)| *id == connection)
    }

    fn report(&self, writer: u16, sequence: u64) {
        let ledger = self.ledger.borrow();
        let Some(cycle) = &ledger.cycle else { return };
        let mut reported = self.reported.borrow_mut();
        let levels = reported.get_or_insert_with(|| cycle.durable.clone());
        if let Some(level) = levels.get_mut(usize::from(writer)) {
            *level = sequence.max(*level);
        }
    }
}

/// Accepts connections for ever; ends when the file fails.
async fn serve(listener: &Listener, book: &Rc<Book>) -> Result<(), Failure> {
    const SETTLE_INTERVAL: Nanos = Nanos::from_millis(100);
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok(stream) => {
                    let id = book.connections.get() + 1;
                    book.connections.set(id);
                    let book = book.clone();
                    rt::spawn_detached(Box::pin(async move {
                        answer(&book, id, &Rc::new(stream)).await;
                    }));
                }
                Err(e) => {
                    log::warning(&format!("{}: cannot accept: {e}", listener.address()));
                    rt::sleep(SETTLE_INTERVAL).await;
                }
            }
        }
    };
    let settling = async {
        loop {
            rt::sleep(SETTLE_INTERVAL).await;
            if let Err(failure) = book.settle() {
                return failure;
            }
        }
    };
    let (accepting, settling) = (std::pin::pin!(accepting), std::pin::pin!(settling));
    match rt::select(accepting, settling).await {
        rt::Either::Left((never, _)) => never,
        rt::Either::Right((failure, _)) => Err(failure),
    }
}

/// Takes the messages of a connection to its end.
async fn answer(book: &Rc<Book>, id: u64, stream: &Rc<Stream>) {
    let why = match Channel::accept(stream.clone(), book.key.as_ref()).await {
        Ok(channel) => match converse(book, id, &channel).await {
            Ok(why) => why,
            Err(failure) => {
                log::error(&failure.line());
                stream.shutdown();
                return;
            }
        },
        Err(why) => why,
    };
    if !matches!(why, SealError::Wire(_)) {
        log::warning(&format!("a connection of {} is refused: {why}", stream.peer()));
    }
    stream.shutdown();
    if !book.is_reporter(id) {
        return;
    }
    book.reporter.take();
    if let Some(cycle) = book.ledger.borrow().cycle.as_ref().filter(|c| !c.has_ended) {
        let (number, peer) = (cycle.number, stream.peer());
        let text = match why {
            SealError::Wire(WireError::Closed) => "closed it".to_owned(),
            why => why.to_string(),
        };
        book.screen.say(&format!("cycle {number}: the connection of {peer} is lost ({text})"));
    }
}

/// Takes messages, and returns why there are no more. Fails when the file does.
async fn converse(book: &Rc<Book>, id: u64, channel: &Channel) -> Result<SealError, Failure> {
    loop {
        let message = match channel.receive::<Message>(REQUEST_MAX_BYTES).await {
            Ok(message) => message,
            Err(why) => return Ok(why),
        };
        if let Some(reply) = take(book, id, channel.stream(), message)? {
            if let Err(why) = channel.send(&reply, REPLY_MAX_BYTES).await {
                return Ok(why);
            }
        }
    }
}

/// Takes a message, and says what to reply. Reports of a connection that is not the last one that
/// said hello are ignored: a machine whose power failed did not close it.
fn take(
    book: &Rc<Book>,
    id: u64,
    stream: &Rc<Stream>,
    message: Message,
) -> Result<Option<Reply>, Failure> {
    let at_s = clock::now_secs();
    if let Message::Hello { device } = message {
        book.settle()?;
        let known = book.ledger.borrow().device.clone();
        if let Some(known) = known.filter(|known| *known != device) {
            return Ok(Some(Reply::OtherDevice(known)));
        }
        let before = book.reporter.borrow_mut().replace((id, stream.clone()));
        if let Some((_, before)) = before {
            before.shutdown();
        }
        book.ledger.borrow_mut().device = Some(device);
        return Ok(Some(book.ledger.borrow().state()));
    }
    if !book.is_reporter(id) {
        return Ok(Some(Reply::OutOfTurn));
    }
    let open = book.ledger.borrow().cycle.as_ref().map(|cycle| cycle.number);
    match message {
        Message::Hello { .. } => {}
        Message::Begin { boot, plan } => {
            if open.is_some() {
                return Ok(Some(Reply::OutOfTurn));
            }
            let device = book.ledger.borrow().device.clone().unwrap_or_default();
            let shown = crate::escape::visible(&device);
            book.enter(&Entry::Begin { at_s, device, boot, plan })?;
            let number = book.ledger.borrow().cycles;
            book.screen.say(&format!("cycle {number} of {shown} begins"));
            return Ok(Some(book.ledger.borrow().state()));
        }
        Message::Durable(writer, sequence) => book.report(writer, sequence),
        Message::Filled => {
            book.enter(&Entry::Filled)?;
            book.screen.say(&format!("cycle {}: each place is written", open.unwrap_or(0)));
            arm(book, id);
        }
        Message::End => {
            book.enter(&Entry::Ended { at_s })?;
            book.screen.say(&format!("cycle {} ended without a cut", open.unwrap_or(0)));
        }
        Message::Verdict { is_cut, findings } => {
            let Some(number) = open else { return Ok(Some(Reply::OutOfTurn)) };
            let text = cut_findings_text(number, is_cut, &findings);
            book.enter(&Entry::Verdict { at_s, is_cut, findings })?;
            book.screen.say(text.trim_end());
            book.screen.say(cut_tally_text(&book.ledger.borrow().tally).trim_end());
            return Ok(Some(book.ledger.borrow().state()));
        }
    }
    Ok(None)
}

/// Runs the command that cuts the power, after a time that is drawn, if the cycle still goes on.
fn arm(book: &Rc<Book>, id: u64) {
    let Some(command) = book.cut_command.clone() else { return };
    let (book, range) = (book.clone(), book.cut_after);
    let millis = range.from * 1000 + rt::random_below((range.to - range.from) * 1000 + 1);
    rt::spawn_detached(Box::pin(async move {
        rt::sleep(Nanos::from_millis(millis)).await;
        let (number, device) = {
            let ledger = book.ledger.borrow();
            let Some(cycle) = ledger.cycle.as_ref().filter(|cycle| !cycle.has_ended) else {
                return;
            };
            (cycle.number, ledger.device.clone().unwrap_or_default())
        };
        if !book.is_reporter(id) {
            return;
        }
        if let Err(failure) = book.enter(&Entry::Cut { at_s: clock::now_secs() }) {
            return log::error(&failure.line());
        }
        book.screen.say(&format!("cycle {number}: the cut command starts"));
        let run = move || {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", &command]).stdin(Stdio::null());
            shell.env("FOREBAY_CYCLE", number.to_string()).env("FOREBAY_DEVICE", device);
            shell.env_remove(KEY_VARIABLE);
            shell.status()
        };
        match rt::aside(run).await {
            Ok(status) if status.success() => {}
            Ok(status) => log::warning(&format!("the cut command ended with {status}")),
            Err(e) => log::warning(&format!("the cut command cannot be started: {e}")),
        }
    }));
}
