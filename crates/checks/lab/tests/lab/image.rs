//! Virtual clients: an image is built once, looked through, and a machine is started from it that
//! works in a federation of this host.
//!
//! It runs after all others, alone: a machine's processor is translated here, which takes two
//! minutes beside other work and a third of one without. `TIELINE_IMAGE_KEEP` names a folder for
//! the Debian part; `IMAGE=1` tries the other formats of the disk as well.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tieline_lab::federation::{Plan, with_plan};
use tieline_lab::program::{self, DEADLINE, Run};
use tieline_lab::{Federation, has_kdc, needs_root, skip};

/// Downloads included.
const BUILD: Duration = Duration::from_secs(900);
const BOOT: &str = "300 s";
/// Behind a boot that took all of its time.
const BOOT_AND_END: Duration = Duration::from_secs(420);

fn is_possible() -> bool {
    let tools = ["mmdebstrap", "qemu-system-x86_64", "sgdisk", "mcopy", "syslinux"];
    let folders = ["/usr/bin", "/usr/sbin", "/sbin"];
    let is_there = |tool: &&str| folders.iter().any(|at| Path::new(at).join(tool).exists());
    let missing: Vec<_> = tools.iter().filter(|tool| !is_there(tool)).collect();
    if !missing.is_empty() {
        skip(format!("images of virtual clients need {missing:?}"));
    }
    missing.is_empty() && needs_root() && has_kdc()
}

fn tieline(words: &[&str], patience: Duration) -> Result<Run> {
    program::finish(Command::new(program::tieline()?).args(words), patience)
}

/// Where the Debian part is kept, within one run or between runs.
fn keep(folder: &Path) -> String {
    let kept = std::env::var_os("TIELINE_IMAGE_KEEP").map(PathBuf::from);
    kept.unwrap_or_else(|| folder.join("keep")).display().to_string()
}

#[test]
fn a_virtual_client_works_in_a_federation() -> Result<()> {
    if !is_possible() {
        return Ok(());
    }
    let folder = tempfile::Builder::new().prefix("tieline-lab-image-").tempdir()?;
    let image = folder.path().join("client");
    let shown = image.display().to_string();
    a_killed_build_leaves_nothing(folder.path())?;
    let begun = Instant::now();
    let all = std::env::var_os("IMAGE").is_some_and(|value| value == "1");
    let formats = if all { "raw,qcow2" } else { "raw" };
    let keep = keep(folder.path());
    let words = ["image", "build", "--level", "client", "--format", formats];
    tieline(&[&words[..], &["--output", &shown, "--keep", &keep]].concat(), BUILD)?
        .succeed("tieline image build")?;
    eprintln!("the image took {:.1} s", begun.elapsed().as_secs_f64());
    packages_are_told(&image)?;
    if all {
        formats_are_the_same(&image)?;
    }
    let plan = Plan::of(&["--kerberos", "--sites", "uf"]);
    with_plan(&plan, |lab| {
        nothing_secret_is_in_the_tar(lab, &image)?;
        a_machine_reads_and_writes(lab, &image)
    })
}

/// Promise 159: An image that has its name is whole: a build that is killed leaves none, and no
/// mount.
fn a_killed_build_leaves_nothing(folder: &Path) -> Result<()> {
    let place = folder.join("killed");
    let (shown, keep) = (place.display().to_string(), folder.join("killed-keep"));
    let keep_shown = keep.display().to_string();
    let words = ["image", "build", "--format", "raw", "--output", &shown, "--keep", &keep_shown];
    let mut build = Command::new(program::tieline()?);
    build.args(words).stdout(Stdio::null());
    let mut build = program::start(&mut build)?;
    // Where dpkg runs in the new root, which has /proc and more mounted.
    let installs = || {
        glob(&keep, ".tieline-image-").into_iter().any(|work| {
            glob(&work, "mmdebstrap.")
                .into_iter()
                .any(|root| root.join("var/lib/dpkg/lock").exists())
        })
    };
    let waited = program::until("packages are installed", Duration::from_secs(240), installs);
    build.kill()?;
    build.wait()?;
    waited?;
    let of_it = || -> Result<String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        Ok(mounts.lines().filter(|line| line.contains(&keep_shown)).collect())
    };
    ensure!(of_it()?.is_empty(), "mounts are left: {}", of_it()?);
    program::until("its children are gone", Duration::from_secs(10), || {
        !is_anybody_at(&keep_shown)
    })?;
    ensure!(!place.exists(), "an image is there");
    ensure!(glob(&keep, "root-").is_empty(), "half a root has its name");
    // Whoever is next there sweeps, and hears why his own build cannot be.
    let nowhere = format!("http://127.0.0.1:{}/debian", program::free_port()?);
    let next = ["image", "build", "--format", "tar", "--output", &shown, "--keep", &keep_shown];
    let refused = tieline(&[&next[..], &["--mirror", &nowhere]].concat(), DEADLINE)?;
    ensure!(!refused.status.success() && refused.stderr.contains("--mirror"), "{refused:?}");
    ensure!(glob(&keep, "").is_empty(), "{:?} is left", glob(&keep, ""));
    ensure!(glob(folder, ".tieline").is_empty() && !place.exists(), "something is left");
    Ok(())
}

fn glob(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_it = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    entries.map(|entry| entry.path()).filter(is_it).collect()
}

/// Does a process have a file below that folder as its root or its working directory, or in its
/// words?
fn is_anybody_at(folder: &str) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.map(|process| process.path()).any(|process| {
        let links = ["root", "cwd"].map(|link| std::fs::read_link(process.join(link)));
        let is_there = |path: PathBuf| path.starts_with(folder);
        let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
        links.into_iter().flatten().any(is_there)
            || String::from_utf8_lossy(&words).contains(folder)
    })
}

fn packages_are_told(image: &Path) -> Result<()> {
    let packages = std::fs::read_to_string(image.join("packages.txt"))?;
    for package in ["krb5-user", "fuse3", "systemd", "linux-image-cloud-amd64"] {
        let line = packages.lines().find(|line| line.split('\t').next() == Some(package));
        let version = line.and_then(|line| line.split('\t').nth(1)).unwrap_or_default();
        ensure!(version.starts_with(|c: char| c.is_ascii_digit()), "{package}: {line:?}");
    }
    let about = std::fs::read_to_string(image.join("image.json"))?;
    let about: serde_json::Value = serde_json::from_str(&about)?;
    let sum = about["files"]["root.tar"].as_str().context("a sum of the tar")?;
    let said = program::call("sha256sum", &[image.join("root.tar")])?;
    ensure!(said.starts_with(sum), "{said} is not {sum}");
    Ok(())
}

/// Promise 158: A disk is the same in each of its formats.
fn formats_are_the_same(image: &Path) -> Result<()> {
    let mut compare = Command::new("qemu-img");
    compare.args(["compare", "-f", "raw", "-F", "qcow2", "disk.raw", "disk.qcow2"]);
    let said = program::finish(compare.current_dir(image), BUILD)?.succeed("qemu-img compare")?;
    ensure!(said.contains("Images are identical"), "{said}");
    Ok(())
}

/// Promise 155: An image has no key, no ticket, no password and no machine's id in it: what a
/// machine proves itself with comes to it at its first boot.
fn nothing_secret_is_in_the_tar(lab: &Federation, image: &Path) -> Result<()> {
    let search = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/image/search.py");
    let look = |tar: &Path, more: &[PathBuf]| {
        let mut command = Command::new("python3");
        program::finish(command.arg(&search).arg(tar).args(more), BUILD)
    };
    let secret = lab.dir().join("keys/extenci.secret");
    // The search finds what there is to be found.
    let planted = lab.local("planted");
    program::shell(
        lab.dir().as_path(),
        &format!(
            "p={}; mkdir -p $p/etc $p/root $p/srv; cp kdc/client.keytab $p/root/other; \
             cp keys/extenci.secret $p/srv/map; echo 0123456789abcdef >$p/etc/machine-id; \
             echo 'root:$y$j9T$abc:1::::::' >$p/etc/shadow; \
             openssl genpkey -algorithm ed25519 -out $p/srv/k.pem 2>/dev/null; \
             tar -cf $p.tar -C $p .",
            planted.display()
        ),
    )?;
    let found = look(&planted.with_extension("tar"), std::slice::from_ref(&secret))?;
    for name in ["root/other", "srv/map", "etc/machine-id", "etc/shadow", "srv/k.pem"] {
        ensure!(found.stdout.contains(&format!("{name}: ")), "{name} was not found: {found:?}");
    }
    let own = lab.try_tieline(&["image", "search", &planted.display().to_string()])?;
    for name in ["root/other", "etc/machine-id", "etc/shadow", "srv/k.pem"] {
        ensure!(own.stderr.contains(&format!("/{name}: ")), "{name}: {}", own.stderr);
    }
    look(&image.join("root.tar"), &[secret])?.succeed("a secret is in the image")?;
    Ok(())
}

/// Promise 156: A disk starts a machine by itself, which mounts the file system, reads what others
/// wrote there, and writes what others read.
///
/// Promise 157: What a job wrote in a virtual client is at its servers when the machine is off.
fn a_machine_reads_and_writes(lab: &Federation, image: &Path) -> Result<()> {
    let (machines, image) = (lab.local("machines"), image.display().to_string());
    let machines = machines.display().to_string();
    let at = ["--machines", &machines];
    let mount = lab.mount().display().to_string();
    let early = lab.try_tieline(&["vm", "start", "wn1", "--machines", &machines])?;
    ensure!(early.stderr.contains("image enroll wn1"), "{}", early.stderr);
    let enroll = ["image", "enroll", "wn1", "--fs", &mount, "--trust", "root"];
    lab.tieline(&[&enroll[..], &at].concat())?;
    let given = Path::new(&machines).join("wn1/given");
    let modes = program::call("stat", &[Path::new("-c%a"), &given.join("krb5.keytab")])?;
    ensure!(modes.trim() == "600", "the keytab's mode is {modes}");
    lab.shell("head -c 3M /dev/urandom >from-host; mkdir d; ln from-host d/link")?;
    let job = lab.local("job.sh");
    std::fs::write(
        &job,
        "set -e\nmd5sum from-host\nhead -c 2M /dev/urandom >d/from-guest\nmd5sum d/from-guest\n\
         mv d/link renamed\nstat -c %h renamed\nklist -k /etc/krb5.keytab | grep -m1 host/\n",
    )?;
    let job = job.display().to_string();
    let start = ["vm", "start", "wn1", "--image", &image, "--accel", "tcg", "--within", BOOT];
    let words = [&start[..], &at, &["--run", &job]].concat();
    let ran = tieline(&words, BOOT_AND_END)?;
    let console = || std::fs::read_to_string(Path::new(&machines).join("wn1/console.log"));
    let said = ran.succeed("tieline vm start").with_context(|| console().unwrap_or_default())?;
    eprintln!("{said}");
    let serial = console()?;
    for marker in ["TIELINE-VM mounted /extenci", "TIELINE-VM job ended 0", "TIELINE-VM unmounted"]
    {
        ensure!(serial.contains(marker), "the console does not say {marker}: {serial}");
    }
    // What the machine read is what is here, and what is here is what the machine wrote.
    let sums = lab.shell("md5sum from-host d/from-guest; stat -c %h renamed")?;
    for line in sums.lines() {
        ensure!(said.contains(line), "here {line}, and the machine said {said}");
    }
    ensure!(said.contains("host/wn1.extenci.org@EXTENCI.ORG"), "{said}");
    let list = lab.json(&[&["vm", "list"][..], &at].concat())?;
    ensure!(list[0]["state"] == "off", "{list}");
    Ok(())
}
