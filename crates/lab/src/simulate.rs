//! `forebay simulate`: experiments by name, one report for all of them.

use crate::catalogue::{self, Page};
use crate::drive::Driver;
use crate::experiments::{self, Plan};
use crate::{LabError, files, sweep};
use forebay_report::{Experiment, Results, SCHEMA};
use std::path::{Path, PathBuf};

/// What `forebay simulate` takes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// degradation, alignment, content, mixed, attachment, zil-pattern, endurance, price, wear,
    /// power-cut, summary, all; or sweep, with a file
    #[arg(required_unless_present_any = ["list", "show"])]
    pub experiment: Option<String>,
    /// The sweep's file
    pub file: Option<PathBuf>,
    /// A device of the catalogue or a TOML file like its pages; may be given again
    #[arg(long = "device", value_name = "NAME|FILE")]
    pub devices: Vec<String>,
    /// Where results, report and kept runs go
    #[arg(long, value_name = "DIR", default_value = "forebay-simulate")]
    pub out: PathBuf,
    /// The seed everything derives from
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SEED)]
    pub seed: u64,
    /// Print the results, or the catalogue, as JSON instead of sentences
    #[arg(long)]
    pub json: bool,
    /// Run devices at 1/N of their size; 1 is full size [default: small enough to be quick]
    #[arg(long, value_name = "N")]
    pub scale: Option<u32>,
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
pub fn run(args: &Args) -> Result<(), LabError> {
    if args.list {
        print!("{}", if args.json { catalogue::list_json() } else { catalogue::list() });
        return Ok(());
    }
    if let Some(name) = &args.show {
        if args.json {
            return Err(LabError::usage(
                "--show prints a TOML page; --list --json has all of them",
            ));
        }
        let page = catalogue::find(name)?;
        print!("{}", catalogue::text(&page.id).unwrap_or_default());
        return Ok(());
    }
    let Some(experiment) = args.experiment.as_deref() else {
        return Err(LabError::usage("name an experiment; --help lists them"));
    };
    if experiment == "sweep" {
        let Some(file) = &args.file else {
            return Err(LabError::usage("sweep: name its file"));
        };
        return sweep::run(&sweep::Args {
            file: file.clone(),
            out: args.out.clone(),
            shard: args.shard.clone(),
            merge: args.merge,
            threads: args.threads,
            quiet: args.json,
        });
    }
    if let Some(file) = &args.file {
        let text = format!("{experiment} takes no file; '{}' is one word too many", file.display());
        return Err(LabError::usage(text));
    }
    if args.shard.is_some() || args.merge {
        return Err(LabError::usage("--shard and --merge belong to sweep"));
    }
    let results = results_of(args, experiment)?;
    let json = forebay_report::to_json(&results);
    let (json_name, html_name) = if experiment == "all" {
        ("results.json".to_owned(), "report.html".to_owned())
    } else {
        (format!("{experiment}.json"), format!("{experiment}.html"))
    };
    files::make_dir(&args.out)?;
    files::replace(&args.out.join(json_name), &json)?;
    let html = args.out.join(html_name);
    files::replace(&html, &forebay_report::render(&results))?;
    if args.json {
        print!("{json}");
    } else {
        print!("{}", sentences(&results));
        println!("Report: {}", html.display());
    }
    Ok(())
}

/// The results `args` ask for, with nothing written but kept runs.
pub fn results_of(args: &Args, experiment: &str) -> Result<Results, LabError> {
    let known = experiment == "all" || experiments::names().contains(&experiment);
    if !known {
        let names = experiments::names().join(", ");
        let text = format!("unknown experiment '{experiment}'; there are {names}, all and sweep");
        return Err(LabError::usage(text));
    }
    if args.scale == Some(0) || args.threads == Some(0) {
        return Err(LabError::usage("--scale and --threads must be at least 1"));
    }
    let chosen = args.devices.iter().map(|d| device(d)).collect::<Result<Vec<_>, _>>()?;
    let keep = args.out.join("runs");
    let mut driver = Driver::new(Some(keep), args.fresh, args.json)?;
    driver.threads = args.threads.unwrap_or(0);
    let scale = args.scale.unwrap_or(0);
    let experiments = match experiment {
        "all" => {
            let mut all = Vec::new();
            for plan in experiments::PLANS {
                all.push(match plan.run(&driver, &chosen, args.seed, scale) {
                    // A device that does not suit one experiment must not stop the others.
                    Err(LabError::Usage(why)) if !chosen.is_empty() => refused(plan, why),
                    other => other?,
                });
            }
            all
        }
        id => {
            let plan = Plan::find(id).expect("its name is known");
            vec![plan.run(&driver, &chosen, args.seed, scale)?]
        }
    };
    let title = match experiments.as_slice() {
        [one] => one.title.clone(),
        _ => "Forebay device lab".to_owned(),
    };
    Ok(Results {
        schema: SCHEMA.into(),
        title,
        generator: format!("forebay {}", env!("CARGO_PKG_VERSION")),
        seed: args.seed,
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

/// A device by catalogue name, or a page in a file.
pub fn device(name: &str) -> Result<Page, LabError> {
    let file = name.ends_with(".toml") || name.contains('/');
    if !file {
        return catalogue::find(name);
    }
    Page::parse(name, &files::read_named(Path::new(name))?)
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
