//! The one program. Everything is in the library, so that checks can use the same composition.

fn main() {
    tieline::cli::leave(tieline::cli::main());
}
