//! `containerd-shim-rampart-v2`: one match on what containerd asked for.
//!
//! The order to read in: `args` (what was asked), `bootstrap` (`start`),
//! `serve` (the daemon), `task` (its service), `pod`, `container`, `cleanup`
//! (`delete`).

#![allow(
    unreachable_pub,
    reason = "a program has no outside: pub here means seen by other modules"
)]

mod args;
mod bootstrap;
mod bundle;
mod calls;
mod cleanup;
mod config;
mod connections;
mod container;
mod covers;
mod create;
#[cfg(test)]
mod damage;
mod error;
mod events;
mod exec;
mod info;
mod limits;
mod lock;
mod logger;
mod metrics;
mod oom;
mod options;
mod placement;
mod pod;
mod process;
mod program;
mod record;
mod rootfs;
mod sampler;
mod sections;
mod serve;
mod socket;
mod stdio;
mod systemd;
mod task;
mod translate;
mod wire;

use std::process::ExitCode;

use args::Action;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    match arguments.peek().and_then(|first| first.to_str()) {
        Some(sandbox::launch::COMMAND) => return sandbox::launch::main(arguments.skip(1)),
        Some(stdio::LOG_PROGRAM) => return stdio::log_program_main(arguments.skip(1)),
        _ => {}
    }
    let action = match args::parse(arguments) {
        Ok(action) => action,
        Err(error) => return fail(&error),
    };
    let outcome = match action {
        Action::Version => info::print_version(),
        Action::Info => info::print_info(),
        Action::Start(flags) => bootstrap::start(&flags),
        Action::Delete(flags) => cleanup::delete(&flags),
        Action::Serve(flags) => serve::serve(&flags),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// containerd shows what a failed call wrote to stderr, so the whole cause
/// goes there, in one line.
fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("{}", error::chain(error));
    ExitCode::FAILURE
}
