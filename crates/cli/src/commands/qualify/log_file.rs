//! The result log as a file: every record is on disk before the next step begins.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use forebay_qualify::{LogDamage, Qualification, Record, encode, read_log};

use crate::args::QualifyArgs;
use crate::clock;
use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::log;

/// A log being written.
pub struct LogFile {
    file: File,
    path: PathBuf,
    records: usize,
}

/// Where the log goes.
pub fn path(args: &QualifyArgs) -> PathBuf {
    args.out.clone().unwrap_or_else(|| default_path(&args.target))
}

/// Where the log of a target goes by default.
fn default_path(target: &str) -> PathBuf {
    let name = target.trim_start_matches("/dev/").trim_end_matches('/');
    let name = name.rsplit_once("://").map_or(name, |(_, rest)| rest);
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let name: String = name.chars().map(plain).collect();
    PathBuf::from(format!("qualify-{}.fbq", name.trim_matches(['-', '.'])))
}

/// Reads a log. A damaged tail is told and left out.
pub fn read(path: &Path) -> Result<(Qualification, Option<LogDamage>), Failure> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let file = files::open_to_read(path).map_err(|e| Failure::io(&shown, &e))?;
    let mut file = file;
    file.read_to_end(&mut bytes).map_err(|e| Failure::io(&shown, &e))?;
    let (run, damage) = read_log(&bytes).map_err(|damage| {
        Failure::new(ErrorCode::Qualify, format!("{shown}: {damage}"))
            .with_hint("'forebay qualify' writes such a log")
    })?;
    if let Some(damage) = damage {
        log::warning(&format!("{shown}: {damage}; what stands before it is used"));
    }
    Ok((run, damage))
}

/// The refusal to take up a run that is complete.
fn complete(path: &Path) -> Failure {
    let shown = path.display();
    let message = format!("{shown} is complete: there is nothing to resume");
    Failure::new(ErrorCode::Qualify, message)
        .with_hint(format!("'forebay report {shown}' shows it, --force begins anew"))
}

/// Why a run cannot be taken up whose file is gone.
pub fn file_is_gone(path: &Path, target: &str) -> Failure {
    match read(path) {
        Err(failure) => failure,
        Ok((run, _)) if run.verdict.is_some() => complete(path),
        Ok(_) => {
            let message = format!("{target} is gone, which {} was begun on", path.display());
            Failure::new(ErrorCode::DeviceNotFound, message).with_hint("--force begins anew")
        }
    }
}

impl LogFile {
    /// A new log, whose name is durable.
    pub fn create(path: &Path, force: bool) -> Result<Self, Failure> {
        let created = match force {
            true => files::create_public(path),
            false => files::create_new_public(path),
        };
        let file = created.map_err(|e| {
            let hint = "--resume goes on with it, --force replaces it, --out names another file";
            match e.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    Failure::usage(format!("{} exists already", path.display())).with_hint(hint)
                }
                _ => Failure::io(path.display(), &e),
            }
        })?;
        files::sync_name(path).map_err(|e| Failure::io(path.display(), &e))?;
        Ok(Self { file, path: path.to_owned(), records: 0 })
    }

    /// The log of a run that is taken up again, and the run. Fails unless it is of the same device
    /// and has the same plan as `wanted`.
    pub fn resume(path: &Path, wanted: &Qualification) -> Result<(Self, Qualification), Failure> {
        let (mut run, damage) = read(path)?;
        let shown = path.display();
        let refuse = |message: String| Failure::new(ErrorCode::Qualify, message);
        if !run.conditions.is_same_device(&wanted.conditions) {
            let (was, is) = (run.conditions.label(), wanted.conditions.label());
            let message = format!("{shown} is of another device: {was}, and this is {is}");
            return Err(refuse(message).with_hint("--out names another log"));
        }
        if run.plan != wanted.plan {
            return Err(refuse(format!("{shown} was begun with another plan"))
                .with_hint("repeat the options that it was begun with"));
        }
        if run.verdict.is_some() {
            return Err(complete(path));
        }
        let file = files::open_to_append(path).map_err(|e| Failure::io(&shown, &e))?;
        if let Some(LogDamage::Line { good_bytes, .. }) = damage {
            file.set_len(good_bytes as u64).map_err(|e| Failure::io(&shown, &e))?;
        }
        let mut log = Self { file, path: path.to_owned(), records: run.records };
        let at_s = clock::now_secs();
        log.append(&Record::Resumed { at_s })?;
        run.resumed_s.push(at_s);
        Ok((log, run))
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Adds a record, and waits until it is durable.
    pub fn append(&mut self, record: &Record) -> Result<(), Failure> {
        let line = encode(self.records, record);
        self.records += 1;
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|e| Failure::io(self.path.display(), &e))
    }
}
