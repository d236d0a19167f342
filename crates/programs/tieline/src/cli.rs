//! What may be typed. `tieline VERB …`, and the names by which mount(8) and umount(8) call their
//! helpers.
//!
//! Exit codes: 0 done, 1 failed, 2 wrongly asked.

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tieline_base::report::{self};
use tieline_verbs as verbs;
use tieline_verbs::parting;

mod examples;

/// Secure wide-area file system over the storage that collaborating sites already have.
#[derive(Parser, Debug)]
#[command(name = "tieline", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Cli {
    /// Log lines as JSON (`TIELINE_LOG` filters them: `info` by default, `warn` for verbs)
    #[arg(long, global = true)]
    log_json: bool,
    /// What a server goes by that no map names yet, such as `host` for host/HOST (else
    /// tieline_mds/HOST, and host/HOST where the KDC does not know that)
    #[arg(long, global = true, value_name = "NAME")]
    service: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Serve an MDT, OSTs, or both
    #[command(after_help = examples::SERVER, subcommand_negates_reqs = true)]
    #[command(args_conflicts_with_subcommands = true)]
    Server {
        #[command(subcommand)]
        verb: Option<ServerVerb>,
        /// The server's settings, as TOML
        #[arg(long, value_name = "FILE", required = true)]
        settings: Option<PathBuf>,
        /// Check the settings and do nothing
        #[arg(long)]
        check: bool,
    },
    /// Mount a file system
    #[command(after_help = examples::MOUNT)]
    Mount(tieline_mount::Args),
    /// Unmount, and wait until everything written is at its servers
    Umount(tieline_mount::UmountArgs),
    /// Make everything durable that was done through a mount
    Sync(verbs::sync::Args),
    /// List directories
    Ls(verbs::list::Args),
    /// Write files to standard output
    Cat(verbs::fetch::CatArgs),
    /// Copy files out of the file system
    Get(verbs::fetch::GetArgs),
    /// Copy files into the file system
    #[command(after_help = examples::PUT)]
    Put(verbs::put::Args),
    /// List, put back and drop bytes that mounts could not store
    #[command(subcommand, after_help = examples::SPOOL)]
    Spool(verbs::spool::Spool),
    /// Keep directory trees here, for times without servers
    Pin(verbs::pin::Args),
    /// Let pinned trees go
    Unpin(verbs::pin::UnpinArgs),
    /// Show what is known of files
    Stat(verbs::stat::Args),
    /// Find files below a directory
    #[command(after_help = examples::FIND)]
    Find(verbs::find::Args),
    /// Set the layout of a directory or a new file
    #[command(after_help = examples::SETSTRIPE)]
    Setstripe(verbs::setstripe::Args),
    /// Show the layout of files, and where their bytes are
    Getstripe(verbs::getstripe::Args),
    /// Rewrite files as another layout has it, while they are in use
    #[command(after_help = examples::MIGRATE)]
    Migrate(verbs::migrate::Args),
    /// Show the ids of files, as logs and fsck name them
    Path2fid(verbs::fid::PathArgs),
    /// Show the paths that lead to a file's id
    Fid2path(verbs::fid::FidArgs),
    /// Show what the ways to files' chunks cost now, and which would be taken
    Cost(verbs::cost::Args),
    /// Give files more copies, have missing ones made, check them all
    #[command(subcommand, after_help = examples::MIRROR)]
    Mirror(verbs::mirror::Mirror),
    /// Put files on tape, release what OSTs have of them, bring them back
    #[command(subcommand, after_help = examples::HSM)]
    Hsm(verbs::hsm::Hsm),
    /// Look at, fill, pin, verify and empty the caches of mounts
    #[command(subcommand, after_help = examples::CACHE)]
    Cache(verbs::cache::Cache),
    /// Show space per OST and pool
    Df(verbs::df::Args),
    /// Show what somebody uses and may use
    #[command(after_help = examples::QUOTA)]
    Quota(verbs::quota::Args),
    /// Set how much somebody may use
    #[command(after_help = examples::QUOTA)]
    Setquota(verbs::quota::SetArgs),
    /// Show what everybody uses and may use
    #[command(after_help = examples::QUOTA)]
    Repquota(verbs::quota::ReportArgs),
    /// Say which project a directory tree is of, for quotas
    Project(verbs::project::Args),
    /// Make, change and list pools
    #[command(subcommand, after_help = examples::POOL)]
    Pool(verbs::pool::Pool),
    /// Trees that are published as files
    #[command(subcommand)]
    Repo(verbs::repo::Repo),
    /// List OSTs, and say which take new chunks
    #[command(subcommand)]
    Ost(verbs::ost::Ost),
    /// Say how connections are protected, and list the rules
    #[command(subcommand, after_help = examples::FLAVOR)]
    Flavor(verbs::flavor::FlavorVerb),
    /// Serve other protocols; say who speaks for users that came to it, and how far it is heard
    #[command(after_help = examples::DOOR)]
    Door {
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        #[arg(long, global = true)]
        fs: Option<OsString>,
        #[command(subcommand)]
        verb: DoorVerb,
    },
    /// Say whose tokens are taken, and whom their users are here
    #[command(after_help = examples::ISSUER)]
    Issuer(verbs::issuer::Args),
    /// List the sites of a federation, and invite another one
    #[command(subcommand, after_help = examples::SITE)]
    Site(verbs::site::Site),
    /// Make this machine a server of a federation that invited it, and start it
    #[command(after_help = examples::JOIN)]
    Join(verbs::join::Args),
    /// Run jobs with tickets of their own
    #[command(subcommand, after_help = examples::AUTH)]
    Auth(verbs::auth::Auth),
    /// Say who somebody is, and why he may or may not
    #[command(after_help = examples::EXPLAIN)]
    Explain(verbs::explain::Args),
    /// Say who is who: users, groups, principals, machines, roles
    #[command(after_help = examples::ID)]
    Id(verbs::id::Args),
    /// Print the checksum of files
    Checksum(verbs::checksum::Args),
    /// Adopt files that lie below an OST's `adopt` directory, without moving a byte
    #[command(after_help = examples::IMPORT)]
    Import(verbs::import::Args),
    /// Give plain files back: hard links, clones or copies in a local directory
    #[command(after_help = examples::EXPORT)]
    Export(verbs::export::Args),
    /// Look for what keeps servers and mounts from working, and say how to mend it
    Doctor(verbs::doctor::Args),
    /// Show the federation map, and make one
    #[command(subcommand, after_help = examples::MAP)]
    Map(verbs::map::Map),
    /// List deleted files, and bring them back
    #[command(after_help = examples::UNDELETE)]
    Undelete(verbs::undelete::Args),
    /// Check metadata and objects while they are in use, and repair them
    #[command(after_help = examples::FSCK)]
    Fsck(verbs::fsck::Args),
    /// List what goes on in the background of servers, and what is in its way
    #[command(after_help = examples::CHORES)]
    Chores(verbs::chores::Args),
    /// Dump, verify, restore and rebuild an MDT
    #[command(subcommand, after_help = examples::MDT)]
    Mdt(verbs::mdt::MdtVerb),
    /// Make images of virtual clients, and what a machine gets at its first boot
    #[command(subcommand, after_help = examples::IMAGE)]
    Image(tieline_image::Image),
    /// Start, list, show and stop virtual clients
    #[command(subcommand, after_help = examples::VM)]
    Vm(tieline_image::Vm),
    /// Run a whole federation on this machine
    #[command(subcommand, after_help = examples::DEV)]
    Dev(tieline_dev::Dev),
    /// Print the version
    Version,
}

#[derive(Subcommand, Debug)]
enum ServerVerb {
    /// Tell clients that servers will be away, so that they wait without errors
    Drain(verbs::drain::Args),
}

#[derive(Subcommand, Debug)]
enum DoorVerb {
    /// Serve a federation's files by other protocols
    Serve(tieline_door::Args),
    #[command(flatten)]
    Known(verbs::door::DoorVerb),
}

/// Runs the program, under whatever name it was called; says with which code it ends.
pub fn main() -> i32 {
    end_with_the_reader();
    let words: Vec<OsString> = std::env::args_os().collect();
    let result = match called_as(words.first()).as_str() {
        "mount.tieline" | "mount.fuse.tieline" => tieline_mount::helper::mount(&words),
        "umount.tieline" | "umount.fuse.tieline" => tieline_mount::helper::umount(&words),
        _ => match Cli::try_parse_from(words) {
            Ok(cli) => run(cli),
            Err(error) => return explain(&error),
        },
    };
    match result {
        Ok(()) => 0,
        Err(error) if is_pipe_closed(&error) => 0,
        Err(error) => report::failed(&error),
    }
}

/// `println!` panics where nobody reads any more, as with `| head`: that is no failure. SIGPIPE
/// stays ignored, for servers write to sockets.
fn end_with_the_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        if said.starts_with("failed printing to stdout") && said.contains("Broken pipe") {
            // Standard output is in use by who panics.
            parting::end(0);
        }
        usual(panic);
    }));
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let is_json = cli.log_json;
    if let Some(service) = &cli.service {
        tieline_base::proving::pin_service(tieline_base::proving::service_check(service)?);
    }
    match cli.verb {
        Verb::Server { verb: Some(ServerVerb::Drain(args)), .. } => verbs::drain::run(&args),
        Verb::Server { verb: None, settings, check } => {
            let settings = settings.unwrap_or_default();
            if !check {
                return tieline_serve::run::run(&settings, is_json);
            }
            let plan = tieline_serve::settings::Settings::load(&settings)?;
            plan.kerberos.prepare();
            let found = plan.look();
            found.check().map_err(|source| {
                let path = settings.clone();
                tieline_serve::settings::SettingsError::Wrong { path, source }
            })?;
            plan.kerberos.check()?;
            for doubt in found.doubts.iter().chain(&found.absent) {
                println!("warning: {doubt}");
            }
            println!("{}: in order", settings.display());
            Ok(())
        }
        Verb::Mount(args) => tieline_mount::run(args, is_json),
        Verb::Umount(args) => tieline_mount::umount(&args),
        Verb::Sync(args) => verbs::sync::run(&args),
        Verb::Ls(args) => verbs::list::run(args),
        Verb::Cat(args) => verbs::fetch::cat(args),
        Verb::Get(args) => verbs::fetch::get(args),
        Verb::Put(args) => verbs::put::run(args),
        Verb::Spool(verb) => verbs::spool::run(verb),
        Verb::Pin(args) => verbs::pin::pin(&args),
        Verb::Unpin(args) => verbs::pin::unpin(&args),
        Verb::Stat(args) => verbs::stat::run(args),
        Verb::Find(args) => verbs::find::run(args),
        Verb::Setstripe(args) => verbs::setstripe::run(args),
        Verb::Getstripe(args) => verbs::getstripe::run(args),
        Verb::Migrate(args) => verbs::migrate::run(args),
        Verb::Path2fid(args) => verbs::fid::path2fid(args),
        Verb::Fid2path(args) => verbs::fid::fid2path(args),
        Verb::Cost(args) => verbs::cost::run(args),
        Verb::Mirror(verb) => verbs::mirror::run(verb),
        Verb::Hsm(verb) => verbs::hsm::run(verb),
        Verb::Cache(verb) => verbs::cache::run(verb),
        Verb::Df(args) => verbs::df::run(args),
        Verb::Quota(args) => verbs::quota::run(args),
        Verb::Setquota(args) => verbs::quota::set(args),
        Verb::Repquota(args) => verbs::quota::report(args),
        Verb::Project(args) => verbs::project::run(args),
        Verb::Pool(verb) => verbs::pool::run(verb),
        Verb::Repo(verb) => verbs::repo::run(verb),
        Verb::Ost(verb) => verbs::ost::run(verb),
        Verb::Flavor(verb) => verbs::flavor::run(verb),
        Verb::Door { fs: Some(_), verb: DoorVerb::Serve(_) } => {
            Err(report::usage("door serve: its settings name the file system, and not --fs"))
        }
        Verb::Door { fs: None, verb: DoorVerb::Serve(args) } => tieline_door::serve(&args, is_json),
        Verb::Door { fs, verb: DoorVerb::Known(verb) } => verbs::door::run(fs, verb),
        Verb::Issuer(args) => verbs::issuer::run(args),
        Verb::Site(verb) => verbs::site::run(verb),
        Verb::Join(args) => verbs::join::run(args),
        Verb::Auth(verb) => verbs::auth::run(verb),
        Verb::Explain(args) => verbs::explain::run(args),
        Verb::Id(args) => verbs::id::run(args),
        Verb::Checksum(args) => verbs::checksum::run(args),
        Verb::Import(args) => verbs::import::run(args),
        Verb::Export(args) => verbs::export::run(args),
        Verb::Doctor(args) => verbs::doctor::run(&args),
        Verb::Map(verb) => verbs::map::run(verb),
        Verb::Undelete(args) => verbs::undelete::run(args),
        Verb::Fsck(args) => verbs::fsck::run(args),
        Verb::Chores(args) => verbs::chores::run(args),
        Verb::Mdt(verb) => verbs::mdt::run(verb),
        Verb::Image(verb) => tieline_image::run_image(verb),
        Verb::Vm(verb) => tieline_image::run_vm(verb),
        Verb::Dev(verb) => tieline_dev::run(verb),
        Verb::Version => {
            println!("tieline {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    }
}

fn called_as(word: Option<&OsString>) -> String {
    let name = word.and_then(|word| Path::new(word).file_name());
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Prints clap's answer, to where it belongs.
fn explain(error: &clap::Error) -> i32 {
    let _ = error.print();
    if error.use_stderr() { 2 } else { 0 }
}

/// Whoever read our output has seen enough.
fn is_pipe_closed(error: &anyhow::Error) -> bool {
    let is_broken = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    };
    error.chain().any(is_broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parses(line: &str) -> bool {
        Cli::try_parse_from(line.split_whitespace()).is_ok()
    }

    #[test]
    fn the_table_of_verbs_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_lustre_people_type_is_understood() {
        for line in [
            "tieline setstripe -c -1 -S 4M -p uf /extenci/d",
            "tieline setstripe -L mdt /extenci/d",
            "tieline setstripe -d /extenci/d",
            "tieline getstripe -r --json /extenci/d /extenci/e",
            "tieline setstripe -N 2 -p uf /extenci/d",
            "tieline setstripe -N -p uf -N -p fnal /extenci/d",
            "tieline migrate -c 2 -S 1M -p uf --json /extenci/f /extenci/g",
            "tieline path2fid /extenci/f /extenci/g",
            "tieline fid2path extenci 0x1000000007 [0x1000000008]",
            "tieline getstripe -y /extenci/f",
            "tieline mirror extend -N 1 -p fnal /extenci/f",
            "tieline mirror resync --json /extenci/f /extenci/g",
            "tieline mirror verify /extenci/f",
            "tieline cache status",
            "tieline cache status /extenci /gluster/cache --json",
            "tieline cache pin /extenci/aux --json",
            "tieline cache unpin tieline://h/extenci/aux --cache /gluster/cache",
            "tieline cache evict /extenci/old",
            "tieline cache evict --all --cache /gluster/cache",
            "tieline cache warm /extenci/aux",
            "tieline cache scrub /gluster/cache",
            "tieline df -h",
            "tieline quota -u ann -h /extenci",
            "tieline quota -p 7 --json /extenci",
            "tieline quota /extenci",
            "tieline setquota -u ann -b 9G -B 10G -i 900k -I 1M /extenci",
            "tieline setquota -t -u -b 7d -i 1h /extenci",
            "tieline setquota --reclaim 1 /extenci",
            "tieline repquota -g --pool uf /extenci",
            "tieline project set /extenci/d 7",
            "tieline project -p 7 -s -r /extenci/d",
            "tieline project -d /extenci/d",
            "tieline df --json /extenci",
            "tieline pool new extenci.uf",
            "tieline pool add extenci.uf extenci-OST[0-1] OST0003",
            "tieline pool list extenci",
            "tieline ost deactivate OST0001",
            "tieline flavor set extenci.srpc.flavor.10.0.0.0/8.cli2ost=krb5p",
            "tieline flavor unset extenci.srpc.flavor.10.0.0.0/8.cli2ost",
            "tieline flavor list extenci --json",
            "tieline dev up --kerberos",
            "tieline dev up --sec krb5p --machine all",
            "tieline id add ann --number 5001 --groups cms,atlas --principal ann@PSC.EDU",
            "tieline id add cms --group --fs /extenci",
            "tieline id map *@UFL.EDU uf-* --fs tieline://h/extenci",
            "tieline id map eve@UFL.EDU --nobody",
            "tieline id map --move ann@PSC.EDU ann",
            "tieline import --in-place --compare /lustre/cms /extenci/cms",
            "tieline id list --json",
            "tieline id remove eve@UFL.EDU",
            "tieline id import --from passwd /etc/passwd --groups /etc/group",
            "tieline id test ann@PSC.EDU --json",
            "tieline id role ann site-admin:fnal --take",
            "tieline id machine host/wn17.uf.example@UFL.EDU root",
            "tieline id strangers squash",
            "tieline explain /extenci/d --as ann@PSC.EDU --op write --json",
            "tieline auth run -- cp -r a b",
            "tieline auth run --keytab k --principal ann@EXTENCI.ORG -- job",
            "tieline find /extenci -name *.root -type f -size +1M -pool uf",
            "tieline checksum -t adler32 /extenci/f",
            "tieline import --in-place /lustre/cms /extenci/cms --ost OST0001 --owners /etc/o",
            "tieline import --checksums /extenci/cms",
            "tieline export /extenci/cms /lustre/cms-out --json",
            "tieline doctor --settings /etc/tieline/uf.toml --mount mds:/extenci --json",
            "tieline mount a,b:7640:/extenci /mnt -o ro,wait=30s --foreground",
            "tieline dev up --dir /tmp/d --mount /extenci --sites uf,fnal --engine memory --json",
            "tieline dev kill --random --restart",
            "tieline server --settings /etc/tieline/server.toml --check",
            "tieline server drain --for 15m",
            "tieline door serve --settings /etc/tieline/xrd.toml --check",
            "tieline door list --fs tieline://h/extenci --json",
            "tieline server drain --cancel --json",
            "tieline pin /extenci/thesis --json",
            "tieline pin --list --json",
            "tieline unpin /extenci/thesis",
            "tieline server drain --for 15m uf 10.0.0.1:7640 --fs tieline://h/extenci",
            "tieline dev up --netns --rtt 50ms --rate 1gbit --loss 1e-4 --ip 6",
            "tieline dev up --netns --rtt 0.2ms --between-sites 20ms --queue 1MiB --seed 7",
            "tieline dev mount /m --site fnal -o wait=5s",
            "tieline dev wan rtt 100ms --link clients",
            "tieline dev wan cut --one-way to-clients --dir /tmp/d",
            "tieline dev wan script cut@5s;heal@15s",
            "tieline image build --level client --format raw,qcow2",
            "tieline image build --keep /var/cache/tieline --package vim-tiny,less --mirror http://m/",
            "tieline image enroll wn1 --fs /extenci --trust root -o ro",
            "tieline vm start wn1 --run job.sh --accel tcg --memory 2GiB --within 300s",
            "tieline vm stop wn1 --force",
            "tieline vm list --json",
            "tieline dev wan run --rtt 12ms --script cut@1s -- iperf3 -c h",
        ] {
            assert!(parses(line), "{line}");
        }
        for line in
            ["tieline", "tieline fly", "tieline server", "tieline setstripe", "tieline pool new"]
        {
            assert!(!parses(line), "{line}");
        }
    }
}
