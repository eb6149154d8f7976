//! The launcher alone, for the tests; the shim has it as a sub-command.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(command) if command == sandbox::launch::COMMAND => sandbox::launch::main(args),
        _ => ExitCode::FAILURE,
    }
}
