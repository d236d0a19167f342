//! Virtual clients: disk images with a client of a federation in them, and machines that start
//! from such an image.
//!
//! `image build` makes an image out of Debian packages and this very program ([`build`]); nothing
//! secret is in it. `image enroll` makes a machine known to a realm and a federation ([`enroll`]),
//! and keeps what the machine gets at its first boot ([`machine`]). `vm start` starts it under QEMU
//! ([`vm`]). Inside the machine, a unit of systemd runs `image first-boot` ([`first`]), which takes
//! systemd's credentials, mounts, and says so on the serial line in [`markers`].
//!
//! Debian's own programs do the work (mmdebstrap, mke2fs, mtools, syslinux, QEMU); [`tools`] says
//! which package has each.
//!
//! Does not know what a mount or a server does: it runs this program's verbs for that.
//! Invariants: an image that has its name is whole; every child ends with us, but for machines that
//! were started to stay; every wait has an end.

mod about;
mod build;
mod disk;
mod enroll;
mod first;
pub mod krb5conf;
pub mod machine;
pub mod markers;
mod overlay;
mod places;
mod root;
mod secrets;
mod tools;
mod vm;
mod work;

pub use build::Build;
pub use enroll::Enroll;
pub use vm::Vm;
pub use vm::answer;

/// Make images of virtual clients, and what a machine gets at its first boot.
#[derive(clap::Subcommand, Debug)]
pub enum Image {
    /// Build an image out of Debian packages and this program (root only)
    Build(Build),
    /// Make a machine's principal and keytab, and what its first boot needs
    Enroll(Enroll),
    /// Look for keys and other secrets in a directory tree, as `build` does
    Search {
        /// Its root
        tree: std::path::PathBuf,
    },
    /// In the machine: take what it was given, and mount
    #[command(hide = true)]
    FirstBoot,
    /// In the machine: run the job that it was given
    #[command(hide = true)]
    Job,
    /// In the machine: unmount before it ends
    #[command(hide = true)]
    Leave,
}

pub fn run_image(verb: Image) -> anyhow::Result<()> {
    match verb {
        Image::Build(args) => build::run(&args),
        Image::Enroll(args) => enroll::run(&args),
        Image::Search { tree } => {
            secrets::search(&tree)?;
            println!("{}: no key and no secret found", tree.display());
            Ok(())
        }
        Image::FirstBoot => first::boot(),
        Image::Job => first::job(),
        Image::Leave => first::leave(),
    }
}

pub fn run_vm(verb: Vm) -> anyhow::Result<()> {
    vm::run(verb)
}
