//! The one program: what may be typed. What it can be is in the other rooms of this floor.

mod cli;

fn main() {
    tieline_verbs::parting::leave(cli::main());
}
