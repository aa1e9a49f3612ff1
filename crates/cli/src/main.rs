//! The `forebay` binary.

/// Requests come and go by the hundred thousand in small pieces of memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    forebay_cli::run::run()
}
