//! `tieline door serve`: other protocols in front of a federation, in one process.
//!
//! * [`settings`]: what the operator of a door says. [`run`]: the process, from its start to its
//!   end in good order.
//! * [`federation`]: as a door at its servers: its own key, its caches, those for whom it speaks.
//! * [`offered`]: what a protocol is given, and what is asked of it while it serves. A protocol is
//!   a room of `doors`, a file here that plugs it in, and a line in [`offered::open`].
//! * `xrootd`: how root:// is plugged in.
//! * [`https`]: WebDAV over https.
//!
//! The process has no rights on files. Whoever comes is proved by the MDSs, by what he sent
//! (docs/security.md, section 9), and served as the mount serves him.
//!
//! Knows no protocol beyond its name and settings.

pub mod federation;
pub mod https;
pub mod offered;
pub mod run;
pub mod settings;
pub mod xrootd;

use std::path::PathBuf;

/// `tieline door serve`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The door's settings, as TOML
    #[arg(long, value_name = "FILE")]
    settings: PathBuf,
    /// Check the settings and do nothing
    #[arg(long)]
    check: bool,
}

/// Runs a door until it is told to stop.
pub fn serve(args: &Args, is_json: bool) -> anyhow::Result<()> {
    if !args.check {
        return run::run(&args.settings, is_json);
    }
    let plan = settings::Settings::load(&args.settings)?;
    for doubt in &plan.doubts {
        println!("warning: {doubt}");
    }
    println!("{}: in order", args.settings.display());
    Ok(())
}
