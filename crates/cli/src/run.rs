//! From the command line to an exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use forebay_rt::Runtime;

use crate::args::{BenchCommand, Cli, Command, PoolCommand, TraceCommand};
use crate::commands::{
    Outcome, attach, bench_nbd, check_service, detach, doctor, doctor_without_pools, log_target,
    man, pool, qualify, record_pool, report, serve, standby, top, trace, up, volume, witness,
};
use crate::completion;
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::pool_access::PoolAccess;
use crate::render::failure_json;
use crate::service_manager::inherited_listeners;
use crate::signals::Signals;
use crate::state::StateDir;
use crate::terminal::print;

/// Runs the command that the process was started with.
#[must_use]
pub fn run() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    // Ends the process when a shell asks for completions.
    clap_complete::CompleteEnv::with_factory(|| completion::with_names(Cli::command()))
        .var(completion::VARIABLE)
        .complete();
    let outcome = match Cli::try_parse_from(&words) {
        Ok(cli) => execute(cli),
        Err(error) => wrong_usage(&error, &words[1..]),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if words.iter().any(|word| word == "--json") {
                // A program that reads the output finds a document there in any case.
                let _ = print(&failure_json(&failure));
            }
            log::error(&failure.line());
            ExitCode::from(failure.exit_code())
        }
    }
}

fn execute(cli: Cli) -> Result<u8, Failure> {
    let outcome = match cli.command {
        Command::Completions { shell } => Outcome::text(completion::script(shell)?),
        Command::Man { dir } => man(dir.as_deref())?,
        Command::Bench { command: BenchCommand::Nbd(args) } => {
            // Before the runtime has threads: they inherit the signal mask.
            let signals = Signals::take()?;
            runtime()?.block_on(async move { bench_nbd(args, &signals.watch()).await })?
        }
        Command::Simulate(args) => {
            forebay_lab::simulate::run(&args)?;
            return Ok(0);
        }
        Command::Trace { command: TraceCommand::Pool(args) } => {
            on_pools(true, async |access| record_pool(args, access).await)?
        }
        Command::Trace { command } => trace(command, runtime)?,
        Command::Qualify(args) => qualify(args, runtime)?,
        Command::Witness(args) => witness(&args, runtime)?,
        Command::Doctor(args) => match runtime() {
            Ok(_) => on_pools(true, async |access| doctor(args, access).await)?,
            Err(why) => doctor_without_pools(&args, why),
        },
        Command::LogTarget(args) => log_target(args, runtime)?,
        Command::Report(args) => report(&args)?,
        Command::Top(args) => on_pools(true, async |access| top(args, &access).await)?,
        Command::Up(args) => on_pools(true, async |access| up(args, access).await)?,
        Command::Serve(args) if args.check => {
            runtime()?.block_on(async move { check_service(&args).await })?
        }
        Command::Serve(args) => {
            let listeners = inherited_listeners()?;
            on_pools(true, async |access| serve(args, listeners, access).await)?
        }
        Command::Standby(args) => {
            let listeners = inherited_listeners()?;
            on_pools(true, async |access| standby(args, listeners, access).await)?
        }
        Command::Pool { command } => {
            on_pools(handles_signals(&command), async |access| pool(command, &access).await)?
        }
        Command::Attach(args) => on_pools(true, async |access| attach(args, &access).await)?,
        Command::Detach(args) => runtime()?.block_on(detach(args))?,
        Command::Volume { command } => {
            on_pools(true, async |access| volume(command, &access).await)?
        }
    };
    print(&outcome.text)?;
    Ok(u8::from(!outcome.complete))
}

/// Runs `work` with the state folder and the servers on it. With `handles_signals`, `work` learns
/// of Ctrl-C and ends by itself.
fn on_pools(
    handles_signals: bool,
    work: impl AsyncFnOnce(PoolAccess) -> Result<Outcome, Failure> + 'static,
) -> Result<Outcome, Failure> {
    let state = StateDir::open()?;
    let signals = handles_signals.then(Signals::take).transpose()?;
    let runtime = runtime()?;
    let outcome = runtime.block_on(async move {
        let stop = signals.map(Signals::watch);
        let access = PoolAccess::new(state, stop.clone());
        let access = match stop {
            Some(stop) => stop.unless_asked(access).await.ok_or_else(|| {
                Failure::new(
                    ErrorCode::Interrupted,
                    "interrupted before any server was asked; nothing was done",
                )
            })?,
            None => access.await,
        };
        work(access?).await
    });
    let left = runtime.finish();
    if left > 0 {
        log::warning(&format!(
            "{left} commands to devices that do not answer are left behind; the kernel keeps this \
             process until they end"
        ));
    }
    outcome
}

fn runtime() -> Result<Runtime, Failure> {
    Runtime::real().map_err(|e| {
        let message = format!("io_uring is not available ({e})");
        Failure::new(ErrorCode::IoUring, message).with_hint(
            "it needs Linux 5.19 or newer, the sysctl kernel.io_uring_disabled at 0, and a \
             container that allows it",
        )
    })
}

/// Whether Ctrl-C must leave nothing half done: in every command but one that only watches.
fn handles_signals(command: &PoolCommand) -> bool {
    !matches!(command, PoolCommand::Iostat { .. })
}

/// Help and version go to standard output; everything else becomes one line.
fn wrong_usage(error: &clap::Error, words: &[OsString]) -> Result<u8, Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            print(&error.render().to_string())?;
            Ok(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{}", error.render());
            Ok(2)
        }
        _ => {
            let words: Vec<String> =
                words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            let (message, hint) = usage_line(&error.render().to_string(), &words);
            Err(Failure::usage(message).with_hint(hint))
        }
    }
}

/// The facts of what clap says (it also prints tips, usage and a pointer to help), on one line,
/// and where help is. `words`: what was typed.
fn usage_line(rendered: &str, words: &[String]) -> (String, String) {
    let body = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let mut line = String::new();
    for fact in body.lines().map(str::trim) {
        if fact.starts_with("Usage:") || fact.starts_with("For more information") {
            break;
        }
        // How to pass a value that looks like an option is hardly ever what was meant.
        if fact.is_empty() || fact.contains("as a value, use") {
            continue;
        }
        if !line.is_empty() {
            line.push_str(if fact.starts_with("tip: ") { "; " } else { " " });
        }
        line.push_str(fact.strip_prefix("tip: ").unwrap_or(fact));
    }
    (line, format!("see '{} --help'", command_of(words)))
}

/// The command that was meant: the first words, as far as they are commands.
fn command_of(words: &[String]) -> String {
    let mut command = Cli::command();
    let mut named = vec!["forebay".to_owned()];
    for word in words {
        let Some(sub) = command.find_subcommand(word).cloned() else { break };
        command = sub;
        named.push(word.clone());
    }
    named.join(" ")
}

#[cfg(test)]
mod tests;
