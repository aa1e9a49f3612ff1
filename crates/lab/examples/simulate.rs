//! The lab's entry point on its own:
//! `cargo run --release -p forebay-lab --example simulate -- --list`.

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Experiments on simulated devices, in virtual time")]
struct Command {
    #[command(flatten)]
    args: forebay_lab::simulate::Args,
}

fn main() -> ExitCode {
    let command = Command::parse();
    match forebay_lab::simulate::run(&command.args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("simulate: {why}");
            ExitCode::from(why.exit_code())
        }
    }
}
