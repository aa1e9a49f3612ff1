//! Results as JSON on standard input, the page on standard output:
//! `cargo run -p forebay-report --example page < results.json > report.html`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let read = std::io::read_to_string(std::io::stdin());
    let results = read.map_err(|e| e.to_string()).and_then(|text| {
        forebay_report::from_json(&text).map_err(|e: forebay_report::ReadError| e.to_string())
    });
    match results {
        Ok(results) => {
            print!("{}", forebay_report::render(&results));
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("page: {why}");
            ExitCode::from(2)
        }
    }
}
