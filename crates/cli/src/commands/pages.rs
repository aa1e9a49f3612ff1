//! Man pages and completions, made from the command table.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use clap::{Command, CommandFactory};

use super::Outcome;
use crate::args::Cli;
use crate::failure::Failure;

/// `forebay completions`.
#[must_use]
pub fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut text);
    Outcome::text(String::from_utf8_lossy(&text).into_owned())
}

/// `forebay man`: the main page, or one page per command into `dir`.
pub fn man(dir: Option<&Path>) -> Result<Outcome, Failure> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let Some(dir) = dir else {
        return Ok(Outcome::text(String::from_utf8_lossy(&page(&command)?).into_owned()));
    };
    let shown = dir.display();
    std::fs::create_dir_all(dir).map_err(|e| Failure::new(format!("{shown}: {e}")))?;
    let written = write_pages(&command, dir)?;
    Ok(Outcome::text(format!("{written} pages in {shown}\n")))
}

fn page(command: &Command) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone())
        .render(&mut text)
        .map_err(|e| Failure::new(format!("the page cannot be made: {e}")))?;
    // What stands after the options are examples, and here and there a word on what they show.
    let text = String::from_utf8_lossy(&text).replace(".SH EXTRA\n", ".SH EXAMPLES\n");
    Ok(text.into_bytes())
}

fn write_pages(command: &Command, dir: &Path) -> Result<usize, Failure> {
    // After `build`, a command's display name is its path: forebay-pool-create.
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let path = dir.join(format!("{name}.1"));
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
    let mut file =
        OpenOptions::new().create(true).write(true).truncate(true).open(&path).map_err(failed)?;
    file.write_all(&page(command)?).map_err(failed)?;
    let mut written = 1;
    for sub in command.get_subcommands() {
        written += write_pages(sub, dir)?;
    }
    Ok(written)
}
