//! `forebay man`: manual pages, made from the command table and the table of properties.

use std::io::Write;
use std::path::Path;

use clap::{Command, CommandFactory};

use super::outcome::Outcome;
use crate::args::Cli;
use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::properties;

/// `forebay man`: the main page, or one page per command into `dir`.
pub fn man(dir: Option<&Path>) -> Result<Outcome, Failure> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let Some(dir) = dir else {
        return Ok(Outcome::text(String::from_utf8_lossy(&page(&command)?).into_owned()));
    };
    let shown = dir.display();
    if dir.exists() && !dir.is_dir() {
        return Err(Failure::new(ErrorCode::Io, format!("{shown} is not a folder"))
            .with_hint("name a folder, or one that is to be made"));
    }
    std::fs::create_dir_all(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    write_page(&dir.join("forebay-properties.7"), properties::manual().as_bytes())?;
    let written = 1 + write_pages(&command, dir)?;
    Ok(Outcome::text(format!("{written} pages in {shown}\n")))
}

const EXIT_STATUS: &str = "\
.SH \"EXIT STATUS\"
.TP
.B 0
The command did what it was asked.
.TP
.B 1
It could not be done, or not for every pool. Standard error says why in one line; with
.BR \\-\\-json ,
standard output has the same with a code for programs.
.TP
.B 2
The command line is wrong. Nothing was done.
";

const ENVIRONMENT: &str = "\
.SH ENVIRONMENT
.TP
.B FOREBAY_STATE_DIR
The state folder.
.TP
.B XDG_STATE_HOME
The state folder of a user is
.I forebay
below it, unless FOREBAY_STATE_DIR is set.
.TP
.B JOURNAL_STREAM
Set by systemd: the messages of a server then have the prefixes of
.BR sd\\-daemon (3)
and no time of their own.
";

const FILES: &str = "\
.SH FILES
.TP
.I /var/lib/forebay
The state folder of root.
.TP
.I ~/.local/state/forebay
The state folder of any other user.
.TP
.I pools.json
In the state folder: the list of known pools.
.TP
.I nbd.sock
In the state folder: the NBD socket of a server without \\-\\-listen.
.TP
.I control\\-PID.sock
In the state folder: the socket by which commands reach the server PID.
";

fn page(command: &Command) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone())
        .source(concat!("forebay ", env!("CARGO_PKG_VERSION")))
        .manual("Forebay")
        .render(&mut text)
        .map_err(|e| Failure::io("the page cannot be made", &e))?;
    let mut page = String::new();
    let mut section = String::new();
    for line in String::from_utf8_lossy(&text).lines() {
        if let Some(head) = line.strip_prefix(".TH ") {
            // The generator leaves the date out: the next field would be taken for it.
            page.push_str(&format!(".TH {}\n", head.replacen(" 1  ", " 1 \"\" ", 1)));
            continue;
        }
        if let Some(title) = line.strip_prefix(".SH ") {
            section = title.to_owned();
            // After the options come examples, and here and there a word on them.
            let title = if section == "EXTRA" { "EXAMPLES" } else { title };
            page.push_str(&format!(".SH {title}\n"));
            if section == "SYNOPSIS" {
                page.push_str(&synopsis(command));
            }
            continue;
        }
        // The synopsis of the generator lacks the values of options.
        let heading = section == "EXTRA" && matches!(line, "Example:" | "Examples:");
        if section != "SYNOPSIS" && !heading {
            page.push_str(line);
            page.push('\n');
        }
    }
    page.push_str(EXIT_STATUS);
    page.push_str(ENVIRONMENT);
    page.push_str(FILES);
    page.push_str(".SH \"SEE ALSO\"\n");
    match parent_page(command) {
        Some(parent) => page.push_str(&format!(".BR {parent} (1),\n")),
        None => page.push_str(".BR forebay\\-pool (1),\n.BR forebay\\-volume (1),\n"),
    }
    page.push_str(".BR forebay\\-properties (7)\n");
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

fn write_page(path: &Path, text: &[u8]) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::io(path.display(), &e);
    let mut file = files::create_public(path).map_err(failed)?;
    file.write_all(text).map_err(failed)
}

fn write_pages(command: &Command, dir: &Path) -> Result<usize, Failure> {
    // After `build`, a command's display name is its path: forebay-pool-create.
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let path = dir.join(format!("{name}.1"));
    write_page(&path, &page(command)?)?;
    let mut written = 1;
    for sub in command.get_subcommands() {
        written += write_pages(sub, dir)?;
    }
    Ok(written)
}
