//! The command `forebay simulate`: experiments by name, one report for all of them.

use crate::catalogue;
use crate::drive::Driver;
use crate::error::{ArgumentError, LabError};
use crate::experiments::{self, Plan};
use crate::operations::OperationLog;
use crate::task::{Outcome, Task};
use crate::{files, sweep};
use forebay_report::{Experiment, Results, SCHEMA};
use std::path::PathBuf;

/// What `forebay simulate` takes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// figures, sensitivity, degradation, alignment, content, mixed, loads, logs, attachment,
    /// zil-pattern, endurance, price, wear, hybrid, power-cut, summary, all; or run or sweep, with
    /// a file
    #[arg(required_unless_present_any = ["list", "show"])]
    pub experiment: Option<String>,
    /// The file of a run or a sweep
    pub file: Option<PathBuf>,
    /// A device of the catalogue or a TOML file like its pages; may be given again
    #[arg(long = "device", value_name = "NAME|FILE")]
    pub devices: Vec<String>,
    /// Where results, report and kept runs go
    #[arg(long, value_name = "DIR", default_value = "forebay-simulate")]
    pub out: PathBuf,
    /// The seed everything derives from [default: [`DEFAULT_SEED`]]
    #[arg(long, value_name = "N",
        help = format!("The seed everything derives from [default: {DEFAULT_SEED}]"))]
    pub seed: Option<u64>,
    /// Print the results, or the catalogue, as JSON instead of sentences
    #[arg(long)]
    pub json: bool,
    /// Run devices at 1/N of their size; 1 is full size [default: small enough to be quick]
    #[arg(long, value_name = "N")]
    pub scale: Option<u32>,
    /// The small edition: fewer devices and shorter runs, to see that everything works
    #[arg(long)]
    pub small: bool,
    /// Run again what is already there
    #[arg(long)]
    pub fresh: bool,
    /// Threads [default: one a core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Of a sweep: run only part I of N
    #[arg(long, value_name = "I/N")]
    pub shard: Option<String>,
    /// Of a sweep: put the parts together
    #[arg(long)]
    pub merge: bool,
    /// Of a run: write a line of CSV for each request
    #[arg(long, value_name = "FILE")]
    pub operations: Option<PathBuf>,
    /// Of a run: replace the file of --operations when it exists
    #[arg(short, long, requires = "operations")]
    pub force: bool,
    /// Print the catalogue
    #[arg(long)]
    pub list: bool,
    /// Print one device's page, with the source of every number
    #[arg(long, value_name = "NAME")]
    pub show: Option<String>,
}

/// The seed when none is given.
pub const DEFAULT_SEED: u64 = 20_260_901;

/// Runs what `args` ask for.
///
/// # Errors
/// The request makes no sense, a file cannot be read or written, or a check of an experiment
/// failed. Results and report are written before the last.
pub fn run(args: &Args) -> Result<(), LabError> {
    if args.list {
        return files::print(&if args.json { catalogue::list_json() } else { catalogue::list() });
    }
    if let Some(name) = &args.show {
        return show(name, args.json);
    }
    let experiment = args.experiment.as_deref().ok_or(ArgumentError::NoExperiment)?;
    if experiment == "run" {
        return run_file(args);
    }
    if args.operations.is_some() {
        return Err(ArgumentError::OperationsOnlyOfRun.into());
    }
    if experiment == "sweep" {
        let file = args.file.clone().ok_or(ArgumentError::NoTaskFile { experiment: "sweep" })?;
        refuse_options(args, "sweep")?;
        return sweep::run(&sweep::Args {
            file,
            out: args.out.clone(),
            shard: args.shard.clone(),
            merge: args.merge,
            threads: args.threads,
            quiet: args.json,
        });
    }
    if let Some(file) = &args.file {
        let (experiment, file) = (experiment.to_owned(), file.clone());
        return Err(ArgumentError::UnexpectedFile { experiment, file }.into());
    }
    if args.shard.is_some() || args.merge {
        return Err(ArgumentError::SweepOnly.into());
    }
    let results = results_of(args, experiment)?;
    let html = write_files(args, experiment, &results)?;
    if args.json {
        files::print(&forebay_report::to_json(&results))?;
    } else {
        files::print(&format!("{}Report: {}\n", sentences(&results), html.display()))?;
    }
    let checks = || results.experiments.iter().flat_map(|e| &e.checks);
    match checks().filter(|c| !c.pass).count() {
        0 => Ok(()),
        failed => Err(LabError::ChecksFailed { failed, total: checks().count() }),
    }
}

/// Runs the one task of a file and prints its outcome as JSON.
fn run_file(args: &Args) -> Result<(), LabError> {
    let file = args.file.as_ref().ok_or(ArgumentError::NoTaskFile { experiment: "run" })?;
    refuse_options(args, "run")?;
    if args.shard.is_some() || args.merge {
        return Err(ArgumentError::SweepOnly.into());
    }
    if let Some(operations) =
        args.operations.as_ref().filter(|path| files::is_same_file(file, path))
    {
        return Err(ArgumentError::OperationsOverTask { file: operations.clone() }.into());
    }
    let task = sweep::read_task(file)?;
    let outcome = match (&task, &args.operations) {
        (_, None) => task.run()?,
        (Task::Timeline(timeline), Some(path)) => {
            let (outcome, log) =
                timeline.run_noting(Some(OperationLog::create(path, args.force)?))?;
            log.map_or(Ok(()), OperationLog::finish)?;
            Outcome::Timeline(outcome)
        }
        _ => return Err(ArgumentError::OperationsOfTimeline.into()),
    };
    let mut value = serde_json::to_value(&outcome).expect("outcomes are plain data");
    forebay_report::round_all(&mut value);
    files::print(&format!("{value}\n"))
}

/// Refuses options whose place is the file of a run or a sweep: they would change nothing.
fn refuse_options(args: &Args, experiment: &'static str) -> Result<(), ArgumentError> {
    let given = [
        ("--device", !args.devices.is_empty()),
        ("--seed", args.seed.is_some()),
        ("--scale", args.scale.is_some()),
        ("--small", args.small),
        ("--fresh", args.fresh),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(ArgumentError::NotBesideFile { experiment, option }),
        None => Ok(()),
    }
}

/// Prints the page of a device.
fn show(name: &str, json: bool) -> Result<(), LabError> {
    if json {
        return Err(ArgumentError::ShowAsJson.into());
    }
    let page = catalogue::find(name)?;
    files::print(catalogue::text(&page.id).unwrap_or_default())
}

/// Writes results and report. Returns the path of the report.
fn write_files(args: &Args, experiment: &str, results: &Results) -> Result<PathBuf, LabError> {
    let (json_name, html_name) = if experiment == "all" {
        ("results.json".to_owned(), "report.html".to_owned())
    } else {
        (format!("{experiment}.json"), format!("{experiment}.html"))
    };
    files::make_dir(&args.out)?;
    files::replace(&args.out.join(json_name), &forebay_report::to_json(results))?;
    let html = args.out.join(html_name);
    files::replace(&html, &forebay_report::render(results))?;
    Ok(html)
}

/// The results `args` ask for. Of all files, only the runs that the lab keeps are written.
pub fn results_of(args: &Args, experiment: &str) -> Result<Results, LabError> {
    let plans: Vec<&Plan> = match Plan::find(experiment) {
        Some(plan) => vec![plan],
        None if experiment == "all" => experiments::PLANS.iter().collect(),
        None => {
            let (name, known) = (experiment.to_owned(), experiments::names());
            return Err(ArgumentError::UnknownExperiment { name, known }.into());
        }
    };
    if args.scale == Some(0) {
        return Err(ArgumentError::Zero { option: "--scale" }.into());
    }
    if args.threads == Some(0) {
        return Err(ArgumentError::Zero { option: "--threads" }.into());
    }
    let chosen = args.devices.iter().map(|d| catalogue::load(d)).collect::<Result<Vec<_>, _>>()?;
    let mut driver = Driver::new(Some(args.out.join("runs")), args.fresh, args.json)?;
    driver.threads = args.threads.unwrap_or(0);
    let (seed, scale) = (args.seed.unwrap_or(DEFAULT_SEED), args.scale.unwrap_or(0));
    let request = experiments::Request { chosen, seed, scale, small: args.small };
    let alone = plans.len() == 1;
    let mut experiments = Vec::new();
    for plan in plans {
        experiments.push(match plan.run(&driver, &request) {
            // A device that does not suit one experiment must not stop the others.
            Err(why) if !alone && !request.chosen.is_empty() && why.exit_code() == 2 => {
                refused(plan, why.to_string())
            }
            other => other?,
        });
    }
    let title = match experiments.as_slice() {
        [one] => one.title.clone(),
        _ => "Forebay device lab".to_owned(),
    };
    Ok(Results {
        schema: SCHEMA.into(),
        title,
        generator: forebay_report::generator(),
        seed,
        experiments,
    })
}

fn refused(plan: &Plan, why: String) -> Experiment {
    Experiment {
        id: plan.id.into(),
        title: plan.title.into(),
        question: plan.question.into(),
        refusal: Some(why),
        ..Experiment::default()
    }
}

fn sentences(results: &Results) -> String {
    let mut out = String::new();
    for e in &results.experiments {
        out.push_str(&format!("{}\n", e.title));
        if let Some(why) = &e.refusal {
            out.push_str(&format!("  not run: {why}\n"));
        }
        for finding in &e.findings {
            out.push_str(&format!("  {}\n", finding.text));
        }
        let held = e.checks.iter().filter(|c| c.pass).count();
        if !e.checks.is_empty() {
            out.push_str(&format!("  {held} of {} checks hold\n", e.checks.len()));
        }
        for check in e.checks.iter().filter(|c| !c.pass) {
            out.push_str(&format!(
                "  does not hold: {}: {} expected, {} got ({})\n",
                check.name,
                forebay_report::round_significant(check.expected),
                forebay_report::round_significant(check.got),
                check.source
            ));
        }
        out.push('\n');
    }
    out
}
