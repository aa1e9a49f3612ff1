//! From the command line to an exit code.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use forebay_rt::Runtime;

use crate::args::{BenchCommand, Cli, Command, PoolCommand};
use crate::commands::{Outcome, bench_nbd, completions, man, pool, serve, up, volume};
use crate::failure::{Failure, report};
use crate::reach::Reach;
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
        Command::Up(args) => on_pools(true, async |reach| up(args, reach).await)?,
        Command::Serve(args) => on_pools(true, async |reach| serve(args, reach).await)?,
        Command::Pool { command } => {
            on_pools(waits(&command), async |reach| pool(command, &reach).await)?
        }
        Command::Volume { command } => {
            on_pools(false, async |reach| volume(command, &reach).await)?
        }
    };
    print(&outcome.text)?;
    Ok(u8::from(!outcome.complete))
}

/// Runs `work` with the state folder and the servers on it. `waits`: Ctrl-C must end it well.
fn on_pools(
    waits: bool,
    work: impl AsyncFnOnce(Reach) -> Result<Outcome, Failure> + 'static,
) -> Result<Outcome, Failure> {
    let state = StateDir::open()?;
    let signals = waits.then(Signals::take).transpose()?;
    runtime()?.block_on(async move {
        let reach = Reach::new(state, signals.map(Signals::watch)).await?;
        work(reach).await
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

/// Whether a command may wait for the end of a scan.
fn waits(command: &PoolCommand) -> bool {
    matches!(
        command,
        PoolCommand::Scrub { .. }
            | PoolCommand::Resilver { .. }
            | PoolCommand::Attach { .. }
            | PoolCommand::Replace { .. }
    )
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
        _ => Err(Failure::usage(usage_line(&error.render().to_string()))),
    }
}

/// Of what clap says (a paragraph, tips, usage, a pointer to help), the facts on one line.
fn usage_line(rendered: &str) -> String {
    let body = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let mut facts = Vec::new();
    for line in body.lines().map(str::trim) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        if !line.is_empty() {
            facts.push(line);
        }
    }
    let usage = body.lines().find_map(|line| line.trim().strip_prefix("Usage: "));
    let command = usage.map_or_else(|| "forebay".to_owned(), command_of);
    format!("{} (see '{command} --help')", facts.join(" "))
}

/// The words of a usage line that are commands.
fn command_of(usage: &str) -> String {
    let mut command = Cli::command();
    let mut words = vec!["forebay"];
    for word in usage.split_whitespace().skip(1) {
        match command.find_subcommand(word).cloned() {
            Some(sub) => {
                command = sub;
                words.push(word);
            }
            None => break,
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests;
