//! Reports on single scenarios: saves shrunk failures, and prints one run.

use std::process::ExitCode;
use std::rc::Rc;

use forebay_dst::scenario::Scenario;
use forebay_dst::subject::Subject;
use forebay_dst::{Failure, Outcome, corpus, run, shrink};

use crate::options::Options;

/// Shrinks a failing scenario and saves it to the corpus folder.
pub fn save_shrunk<S: Subject>(
    options: &Options,
    subject: &Rc<S>,
    name: &str,
    scenario: &Scenario,
    failure: &Failure,
) {
    let (mut small, runs) =
        shrink::shrink(scenario, failure.kind, options.shrink, |candidate| run(subject, candidate));
    let message = run(subject, &small).failure.map_or_else(String::new, |f| f.to_string());
    small.description = message.clone();
    match corpus::save(&options.corpus, name, &small) {
        Ok(path) => {
            println!("shrunk to {} acts in {runs} runs: {}", small.acts(), path.display());
            println!("  {message}");
        }
        Err(error) => println!("could not save {name}: {error}"),
    }
}

/// Prints the outcome of one scenario of a search.
pub fn report_one<S: Subject>(
    options: &Options,
    subject: &Rc<S>,
    (root, number): (u64, u64),
    scenario: &Scenario,
    outcome: &Outcome,
) -> ExitCode {
    println!("run {number} of root seed {root}: digest {:#x}", outcome.digest);
    println!("{:?}, demand {:?}, boots {}", scenario.spec, scenario.demand, scenario.boots.len());
    println!("device commands of each boot: {:?}", outcome.boot_commands);
    let Some(failure) = &outcome.failure else {
        println!("passed");
        return ExitCode::SUCCESS;
    };
    println!("{failure}");
    if options.shrink > 0 {
        save_shrunk(options, subject, &format!("run-{root:x}-{number}"), scenario, failure);
    }
    ExitCode::FAILURE
}
