//! `--purge`: what may be sent to this device, decided before anything is written; then sent.
//!
//! What enters: a way to purge, the device's name. What leaves: a job that is run as the plan's
//! step, or a refusal. What always holds: a way that needs a tool is for whole drives of its kind
//! alone. Who calls: `qualify`.

use std::path::Path;

use forebay_qualify::{
    Ended, Measured, Observer, Outcome, Progress, Purge, Sanitize, SanitizeState, Step, TargetKind,
    may_format, may_sanitize, may_secure_erase, namespaces, sanitize_state,
};
use forebay_rt as rt;
use forebay_units::Nanos;

use super::tools::{self, Printed, ToolError};
use crate::failure::{ErrorCode, Failure};

/// A purge that nothing speaks against.
pub enum Job {
    /// The plan's own step discards.
    Discard,
    /// This command, which returns when the drive is done.
    Command(&'static str, Vec<String>),
    /// The same, after which the drive goes on: the log tells when it is done.
    Sanitize(Vec<String>, String),
    /// Two commands: a password, and the erasure, which removes it.
    SecureErase(String),
}

const ASK_LIMIT: Nanos = Nanos::from_secs(30);
/// A password is needed to erase, and gone afterwards.
const PASSWORD: &str = "forebay";

/// The job of a way on a device.
pub async fn prepare(way: Purge, target: &str, kind: TargetKind) -> Result<Job, Failure> {
    let refused = |why: String| {
        let message = format!("--purge {}: {why}", way.name());
        Failure::new(ErrorCode::DeviceUnusable, message)
    };
    if way == Purge::Discard {
        return Ok(Job::Discard);
    }
    let name = Path::new(target).canonicalize().unwrap_or_default();
    let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if kind != TargetKind::BlockDevice {
        let why = format!("{target} is no drive; --purge discard is for files, exports and models");
        return Err(refused(why));
    }
    let is_nvme = name.starts_with("nvme");
    match way {
        Purge::NvmeFormat | Purge::NvmeSanitize if !is_nvme => {
            return Err(refused(format!("{target} is no NVMe drive")));
        }
        Purge::AtaSecureErase if !name.starts_with("sd") => {
            return Err(refused(format!("{target} is no ATA drive")));
        }
        _ => {}
    }
    if way == Purge::AtaSecureErase {
        let text = ask("hdparm", &["-I", target]).await.map_err(refused)?;
        may_secure_erase(&text).map_err(|e| refused(e.to_string()))?;
        return Ok(Job::SecureErase(target.to_owned()));
    }
    let controller = ask("nvme", &["id-ctrl", target, "-o", "json"]).await.map_err(refused)?;
    let list = ask("nvme", &["list-ns", target, "-o", "json"]).await.map_err(refused)?;
    let count = namespaces(&list).map_err(|e| refused(e.to_string()))?;
    let target = target.to_owned();
    if way == Purge::NvmeFormat {
        may_format(&controller, count).map_err(|e| refused(e.to_string()))?;
        let words = ["format", &target, "--ses=1", "--force"].map(str::to_owned);
        return Ok(Job::Command("nvme", words.to_vec()));
    }
    let action = match may_sanitize(&controller, count).map_err(|e| refused(e.to_string()))? {
        Sanitize::Block => "start-block-erase",
        Sanitize::Crypto => "start-crypto-erase",
    };
    let words = ["sanitize", &target, "-a", action].map(str::to_owned).to_vec();
    Ok(Job::Sanitize(words, target))
}

/// What a tool prints, or why it prints nothing.
async fn ask(program: &'static str, words: &[&str]) -> Result<String, String> {
    match tools::run(program, words, ASK_LIMIT).await {
        Ok(Printed { text, is_success: true, .. }) => Ok(text),
        Ok(Printed { complaint, .. }) => Err(format!("{program}: {complaint}")),
        Err(e @ ToolError::Missing) => {
            let package = if program == "nvme" { "nvme-cli" } else { program };
            Err(format!("{program} {e} (Debian: apt-get install {package})"))
        }
        Err(e) => Err(format!("{program} {e}")),
    }
}

async fn command(program: &'static str, words: &[&str], limit: Nanos) -> Result<(), String> {
    match tools::run(program, words, limit).await {
        Ok(Printed { is_success: true, .. }) => Ok(()),
        Ok(Printed { complaint, .. }) => Err(format!("{program} {}: {complaint}", words[0])),
        Err(e) => Err(format!("{program} {e}")),
    }
}

async fn sanitize(words: &[&str], target: &str, limit: Nanos) -> Result<(), String> {
    const LOOK: Nanos = Nanos::from_secs(2);
    let begun = rt::now();
    command("nvme", words, ASK_LIMIT).await?;
    loop {
        let log = ask("nvme", &["sanitize-log", target, "-o", "json"]).await?;
        match sanitize_state(&log).map_err(|e| e.to_string())? {
            SanitizeState::Done => return Ok(()),
            SanitizeState::Failed => return Err("the drive says that it failed".to_owned()),
            SanitizeState::Running if rt::now().since(begun) > limit => {
                return Err("it still goes on".to_owned());
            }
            SanitizeState::Running => rt::sleep(LOOK).await,
        }
    }
}

impl Job {
    /// Purges the device. The drive takes no word in between: Ctrl-C waits for the end.
    pub async fn run(&self, step: &Step, observer: &dyn Observer) -> Outcome {
        let working = std::pin::pin!(self.work(step));
        match rt::select(working, std::pin::pin!(show(observer))).await {
            rt::Either::Left((outcome, _)) => outcome,
            rt::Either::Right((never, _)) => match never {},
        }
    }

    async fn work(&self, step: &Step) -> Outcome {
        let (begun, limit) = (rt::now(), step.limit());
        let mut outcome = Outcome::needless(step);
        let done = match self {
            Self::Discard => Ok(()),
            Self::Command(program, words) => command(program, &as_words(words), limit).await,
            Self::Sanitize(words, target) => sanitize(&as_words(words), target, limit).await,
            Self::SecureErase(target) => {
                let pass = ["--user-master", "u", "--security-set-pass", PASSWORD, target];
                let erase = ["--user-master", "u", "--security-erase", PASSWORD, target];
                match command("hdparm", &pass, ASK_LIMIT).await {
                    Ok(()) => command("hdparm", &erase, limit).await.map_err(|why| {
                        format!("{why}; the password '{PASSWORD}' may still be set on the drive")
                    }),
                    Err(why) => Err(why),
                }
            }
        };
        let ended = match done {
            Ok(()) => Ended::Time,
            Err(error) => Ended::Failed { error, is_unsupported: false },
        };
        let seconds = rt::now().since(begun).as_secs_f64();
        outcome.measured = Measured { seconds, requests: 1, ended, ..Measured::default() };
        outcome
    }
}

/// Shows how long it takes. The wish to stop is not heard.
async fn show(observer: &dyn Observer) -> std::convert::Infallible {
    const LOOK: Nanos = Nanos::from_millis(250);
    let begun = rt::now();
    loop {
        let elapsed = rt::now().since(begun);
        observer.goes_on(Progress { elapsed, ..Progress::default() });
        rt::sleep(LOOK).await;
    }
}

fn as_words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}
