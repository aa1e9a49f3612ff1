//! From the command line to an exit code.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use forebay_rt::Runtime;

use crate::args::{BenchCommand, Cli, Command, PoolCommand};
use crate::commands::{Outcome, bench_nbd, completions, man, pool, serve, up, volume};
use crate::failure::{Failure, report};
use crate::pool_access::PoolAccess;
use crate::signals::Signals;
use crate::state::StateDir;
use crate::terminal::print;

/// Runs the command that the process was started with.
#[must_use]
pub fn run() -> ExitCode {
    let outcome = match Cli::try_parse() {
        Ok(cli) => execute(cli),
        Err(error) => wrong_usage(&error),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            report(&failure.message);
            ExitCode::from(failure.code)
        }
    }
}

fn execute(cli: Cli) -> Result<u8, Failure> {
    let outcome = match cli.command {
        Command::Completions { shell } => completions(shell),
        Command::Man { dir } => man(dir.as_deref())?,
        Command::Bench { command: BenchCommand::Nbd(args) } => {
            // Before the runtime has threads: they inherit the mask.
            let signals = Signals::take()?;
            runtime()?.block_on(async move { bench_nbd(args, &signals.watch()).await })?
        }
        Command::Simulate(args) => {
            forebay_lab::simulate::run(&args)
                .map_err(|e| Failure { message: e.to_string(), code: e.exit_code() })?;
            return Ok(0);
        }
        Command::Up(args) => on_pools(true, async |access| up(args, access).await)?,
        Command::Serve(args) => on_pools(true, async |access| serve(args, access).await)?,
        Command::Pool { command } => {
            on_pools(ends_well(&command), async |access| pool(command, &access).await)?
        }
        Command::Volume { command } => {
            on_pools(true, async |access| volume(command, &access).await)?
        }
    };
    print(&outcome.text)?;
    Ok(u8::from(!outcome.complete))
}

/// Runs `work` with the state folder and the servers on it. `ends_well`: Ctrl-C is told to it.
fn on_pools(
    ends_well: bool,
    work: impl AsyncFnOnce(PoolAccess) -> Result<Outcome, Failure> + 'static,
) -> Result<Outcome, Failure> {
    let state = StateDir::open()?;
    let signals = ends_well.then(Signals::take).transpose()?;
    runtime()?.block_on(async move {
        let stop = signals.map(Signals::watch);
        let access = PoolAccess::new(state, stop.clone());
        let access = match stop {
            Some(stop) => stop.unless_asked(access).await.ok_or_else(|| {
                Failure::new("interrupted before any server was asked; nothing was done")
            })?,
            None => access.await,
        };
        work(access?).await
    })
}

fn runtime() -> Result<Runtime, Failure> {
    Runtime::real().map_err(|e| {
        Failure::new(format!(
            "io_uring is not available ({e}); it needs Linux 5.19 or newer, the sysctl \
             kernel.io_uring_disabled at 0, and a container that allows it"
        ))
    })
}

/// Whether Ctrl-C must leave nothing half done: everything but a command that only watches.
fn ends_well(command: &PoolCommand) -> bool {
    !matches!(command, PoolCommand::Iostat { .. })
}

/// Help and version go to standard output; everything else becomes one line.
fn wrong_usage(error: &clap::Error) -> Result<u8, Failure> {
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
                std::env::args_os().skip(1).map(|w| w.to_string_lossy().into_owned()).collect();
            Err(Failure::usage(usage_line(&error.render().to_string(), &words)))
        }
    }
}

/// Of what clap says (a paragraph, tips, usage, a pointer to help), the facts on one line. `words`:
/// what was typed.
fn usage_line(rendered: &str, words: &[String]) -> String {
    let body = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let mut line = String::new();
    for fact in body.lines().map(str::trim) {
        if fact.starts_with("Usage:") || fact.starts_with("For more information") {
            break;
        }
        // How to pass what looks like an option as a value is hardly ever what was meant.
        if fact.is_empty() || fact.contains("as a value, use") {
            continue;
        }
        if !line.is_empty() {
            line.push_str(if fact.starts_with("tip: ") { "; " } else { " " });
        }
        line.push_str(fact.strip_prefix("tip: ").unwrap_or(fact));
    }
    format!("{line} (see '{} --help')", command_of(words))
}

/// The command that was meant: its words, as far as they are commands.
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
