//! The one program. Everything is in the library, so that checks can use the same composition.

use std::process::ExitCode;

fn main() -> ExitCode {
    tieline::cli::main()
}
