//! Man pages and completions, made from the command table.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use clap::{Command, CommandFactory};

use super::outcome::Outcome;
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
    if dir.exists() && !dir.is_dir() {
        return Err(Failure::new(format!("{shown} is no folder; name one, or one to be made")));
    }
    std::fs::create_dir_all(dir).map_err(|e| Failure::new(format!("{shown}: {e}")))?;
    let written = write_pages(&command, dir)?;
    Ok(Outcome::text(format!("{written} pages in {shown}\n")))
}

fn page(command: &Command) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone())
        .source(concat!("forebay ", env!("CARGO_PKG_VERSION")))
        .manual("Forebay")
        .render(&mut text)
        .map_err(|e| Failure::new(format!("the page cannot be made: {e}")))?;
    let mut page = String::new();
    let mut section = String::new();
    for line in String::from_utf8_lossy(&text).lines() {
        if let Some(head) = line.strip_prefix(".TH ") {
            // The generator leaves the date out without a trace; what follows would be taken for it.
            page.push_str(&format!(".TH {}\n", head.replacen(" 1  ", " 1 \"\" ", 1)));
            continue;
        }
        if let Some(title) = line.strip_prefix(".SH ") {
            section = title.to_owned();
            // What stands after the options are examples, and here and there a word on them.
            let title = if section == "EXTRA" { "EXAMPLES" } else { title };
            page.push_str(&format!(".SH {title}\n"));
            if section == "SYNOPSIS" {
                page.push_str(&synopsis(command));
            }
            continue;
        }
        // The generator leaves the values of options out.
        let heading = section == "EXTRA" && matches!(line, "Example:" | "Examples:");
        if section != "SYNOPSIS" && !heading {
            page.push_str(line);
            page.push('\n');
        }
    }
    if let Some(parent) = parent_page(command) {
        page.push_str(&format!(".SH \"SEE ALSO\"\n.BR {parent} (1)\n"));
    }
    Ok(page.into_bytes())
}

/// The usage line as `--help` has it.
fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let lines = usage.lines().map(|line| line.trim().replace('\\', "\\e").replace('-', "\\-"));
    format!("{}\n", lines.collect::<Vec<_>>().join("\n.br\n"))
}

/// The page of the command above this one: forebay-pool of forebay-pool-create.
fn parent_page(command: &Command) -> Option<String> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    name.rsplit_once('-').map(|(parent, _)| parent.replace('-', "\\-"))
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
