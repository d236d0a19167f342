//! Every command of the README is run: what a newcomer types first must work.
//!
//! A block to be run stands after a line `<!-- test: NAME -->`; names of hosts, places and ports
//! are replaced by those of the test, nothing else.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tieline_lab::{program, shell, with_federation};

const DEADLINE: Duration = Duration::from_secs(120);
/// A user that no machine has.
const OWNER: u32 = 61_234;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).map(Path::to_owned).unwrap_or_default()
}

/// The block after `<!-- test: NAME -->`.
fn block(name: &str) -> Result<String> {
    let readme = fs::read_to_string(root().join("README.md"))?;
    let marker = format!("<!-- test: {name} -->");
    let after = readme.split_once(&marker).with_context(|| format!("no {marker}"))?.1;
    let lines = after.lines().skip_while(|line| !line.starts_with("```")).skip(1);
    let lines: Vec<_> = lines.take_while(|line| *line != "```").collect();
    Ok(lines.join("\n") + "\n")
}

/// A PATH on which `tieline` is the program under test.
fn search_path() -> Result<String> {
    let folder = program::tieline()?.parent().context("the program lies in a folder")?;
    Ok(format!("export PATH={}:$PATH\n", folder.display()))
}

/// Files with muon pairs, as the demo shows them.
const MAKE_EVENTS: &str = r#"
import sys, numpy as np, uproot
def pair(i, mass):
    half = np.full(len(mass), mass / 2)
    sign = 1 if i == 1 else -1
    zero = np.zeros(len(mass))
    return {f"E{i}": half, f"px{i}": sign * half, f"py{i}": zero, f"pz{i}": zero,
            f"Q{i}": np.full(len(mass), sign, "int32")}
for name in sys.argv[1:]:
    mass = np.random.default_rng(1).normal(91.2, 2.5, 3000)
    with uproot.recreate(name) as file:
        file["events"] = {**pair(1, mass), **pair(2, mass)}
"#;

#[test]
fn the_demo_shows_itself_and_leaves_no_trace() -> Result<()> {
    let Some(python) = tieline_lab::python() else { return Ok(()) };
    if !tieline_lab::can_mount() {
        return Ok(());
    }
    let folder = tempfile::Builder::new().prefix("tieline-demo-").tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (one, other) = (at("one.root"), at("nano_dy.root"));
    program::call(&python, &["-c", MAKE_EVENTS, &one, &other])?;
    let run = |line: &str| -> Result<String> {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", line]).current_dir(root());
        command.env("YES", "1").env("PROGRAM", program::tieline()?).env("PYTHON", &python);
        command.env("FILES", format!("{one} {other}")).env("MOUNT", at("mount"));
        command.env("CARGO_TARGET_DIR", at("target"));
        program::finish(&mut command, program::DEADLINE)?.succeed(line)
    };
    let commands = block("demo")?;
    let mut lines = commands.lines().filter(|line| !line.is_empty());
    let shown = run(lines.next().context("make demo")?);
    let down = run(lines.next().context("make demo-down")?);
    let shown = shown?;
    down?;
    let stranger = "ann@EXTENCI.ORG is a stranger";
    let parts = ["near the Z: median 91", "at fnal: 1 chunk", "round trips:", stranger];
    let chapters = [
        "krb5p between",
        "conditions: the same 41 names",
        "xrdcp: 3000 pairs, the same masses",
        "uproot: 3000 pairs, the same masses",
        "md5sum says the same of both",
        "NEARLINE",
        "(Offline|IsReadable)",
        "it is there, with the same bytes",
        "make demo-down",
    ];
    for part in parts.into_iter().chain(chapters) {
        ensure!(shown.contains(part), "the demo did not say {part:?}:\n{shown}");
    }
    ensure!(!Path::new(&at("target/demo")).exists(), "the demo's folder is left");
    ensure!(!Path::new(&at("mount")).exists(), "the demo's mount point is left");
    Ok(())
}

#[test]
fn what_the_readme_says_to_try_works() -> Result<()> {
    with_federation(|lab| {
        for folder in ["data", "fnal/data"] {
            fs::create_dir(lab.mount().join(folder))?;
            fs::write(lab.mount().join(folder).join("f.root"), vec![7; 100_000])?;
        }
        let mount = lab.mount().display().to_string();
        let commands = block("try")?.replace("/extenci", &mount);
        ensure!(commands.lines().count() >= 5, "{commands}");
        let said = shell(&lab.local("."), &format!("{}{commands}", search_path()?))?;
        ensure!(said.contains("OST0000") && said.contains("f.root"), "{said}");
        Ok(())
    })
}

#[test]
fn the_first_real_site_comes_up() -> Result<()> {
    if !tieline_lab::can_mount() {
        return Ok(());
    }
    let folder = tempfile::Builder::new().prefix("tieline-site-").tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    for name in ["srv/state", "srv/ost0", "mount"] {
        fs::create_dir_all(at(name))?;
    }
    // Free when it was asked for: nobody else takes it within the moment.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let fit = |text: String| {
        text.replace("tieline.uf.example:7640", &format!("127.0.0.1:{port}"))
            .replace("tieline.uf.example", &format!("127.0.0.1:{port}"))
            .replace("/srv/tieline", &at("srv"))
            .replace(" /extenci\n", &format!(" {}\n", at("mount")))
            .replace("mount -t tieline", "tieline mount")
            .replace("100 GiB", "1 MiB")
    };
    fs::write(at("federation.toml"), fit(block("file federation.toml")?))?;
    let listen = format!("listen = \"127.0.0.1:{port}\"\n");
    fs::write(at("server.toml"), listen + &fit(block("file server.toml")?))?;
    let commands = fit(block("site")?);
    ensure!(commands.lines().count() == 4, "four commands are promised:\n{commands}");
    let script = format!(
        r#"
        {path}
        end() {{ fusermount3 -u {mount} || umount {mount}; kill %1; wait; }}
        trap end EXIT
        {commands}
        echo hello > {mount}/f; cat {mount}/f
        head -c 300000 /dev/zero > {mount}/g; cmp {mount}/g <(head -c 300000 /dev/zero)
        tieline umount {mount}
        {mount_again}
        cat {mount}/f
        "#,
        path = search_path()?,
        mount = at("mount"),
        mount_again = commands.lines().last().unwrap_or_default(),
    );
    let said = shell(folder.path(), &script)?;
    ensure!(said.ends_with("hello\nhello\n"), "{said}");
    ensure!(fs::read_dir(at("mount"))?.count() == 0, "still mounted");
    Ok(())
}

/// A federation of one's own needs no root: what is mounted belongs to whoever made it.
#[test]
fn somebody_who_is_not_root_has_a_federation_of_his_own() -> Result<()> {
    if !tieline_lab::is_root() || !Path::new("/usr/bin/fusermount3").exists() {
        return Ok(());
    }
    let folder = tempfile::Builder::new().prefix("tieline-lab-own-").tempdir()?;
    std::os::unix::fs::chown(folder.path(), Some(OWNER), Some(OWNER))?;
    // Here /dev/fuse may be root's alone, and nobody has this number.
    let machine = format!(
        "mount -t tmpfs tmpfs /mnt; mknod /mnt/fuse c 10 229; chmod 666 /mnt/fuse
         mount --bind /mnt/fuse /dev/fuse
         (cat /etc/passwd; echo own:x:{OWNER}:{OWNER}::/:/bin/sh) > /mnt/passwd
         mount --bind /mnt/passwd /etc/passwd
         exec setpriv --reuid={OWNER} --regid={OWNER} --clear-groups sh -ec \"$1\""
    );
    let his = r#"
        export HOME=$PWD; umask 22
        end() { "$TIELINE" dev down --dir fed; }
        trap end EXIT
        "$TIELINE" dev up --dir fed --mount mnt >&2
        echo hello > mnt/f; mkdir mnt/fnal/d; echo there > mnt/fnal/d/g; cat mnt/f mnt/fnal/d/g
        stat -c %u:%g mnt mnt/f mnt/fnal
    "#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", &machine, "sh", his]).current_dir(folder.path());
    command.env("TIELINE", program::tieline()?);
    let said = program::finish(&mut command, DEADLINE)?.succeed("a federation of his own")?;
    let owner = format!("{OWNER}:{OWNER}\n");
    ensure!(said == format!("hello\nthere\n{}", owner.repeat(3)), "{said}");
    Ok(())
}
