//! The load generator as a program of its own.
//!
//! Example: `bench nbd://127.0.0.1:10809/trial --overwrite --fua`

use std::process::ExitCode;

use clap::Parser;
use forebay_nbd::bench::{BenchArgs, BenchError, BenchReport, Cancellation, run};
use forebay_rt::Runtime;
use forebay_rt::signal::Signals;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    bench: BenchArgs,
}

async fn bench(args: BenchArgs) -> Result<BenchReport, BenchError> {
    let cancellation = Cancellation::new();
    let cancel = cancellation.clone();
    forebay_rt::spawn(async move {
        if let Ok(signals) = Signals::interrupts() {
            if signals.next().await.is_ok() {
                cancel.cancel();
            }
        }
    });
    run(args, &cancellation).await
}

fn main() -> ExitCode {
    let args = Command::parse().bench;
    let json = args.json;
    let runtime = match Runtime::real() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("bench: io_uring is not available: {e}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(bench(args)) {
        Ok(report) if json => println!("{}", report.to_json()),
        Ok(report) => print!("{report}"),
        Err(e) => {
            eprintln!("bench: {e}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
