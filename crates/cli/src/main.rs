//! The `forebay` binary.

fn main() -> std::process::ExitCode {
    forebay_cli::run::run()
}
