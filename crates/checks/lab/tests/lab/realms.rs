//! Users of other realms, by trust that is direct or goes over a third realm; users who have
//! nothing but an X.509 certificate; and a KDC's replica. All KDCs are real, in folders of their
//! own.

use anyhow::{Context, Result, ensure};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tieline_auth::ScratchKdc;
use tieline_lab::federation::Federation;
use tieline_lab::program::{self, DEADLINE, Run};
use tieline_lab::tickets;

const HOME: &str = "EXTENCI.ORG";
const PSC: &str = "PSC.EDU";
const UFL: &str = "UFL.EDU";
/// UFL.EDU and EXTENCI.ORG know each other only by PSC.EDU.
const PATHS: &str = "[capaths]\n  UFL.EDU = {\n    EXTENCI.ORG = PSC.EDU\n    PSC.EDU = .\n  }\n  \
                     PSC.EDU = {\n    EXTENCI.ORG = .\n  }\n";

/// The federation's realm, with its KDC in our hands.
struct Home<'f> {
    federation: &'f Federation,
    kdc: ScratchKdc,
    folder: tempfile::TempDir,
}

fn with_home(test: impl FnOnce(&mut Home) -> Result<()>) -> Result<()> {
    tickets::with_kdc(|federation| {
        let dir = federation.dir().join("kdc");
        let settings = std::fs::read_to_string(dir.join("krb5.conf"))?;
        let port = settings.split_once("kdc = 127.0.0.1:").context("it names its KDC")?.1;
        let port: String = port.chars().take_while(char::is_ascii_digit).collect();
        let kdc = ScratchKdc::again(&dir, HOME, port.parse()?);
        test(&mut Home { federation, kdc, folder: tempfile::tempdir()? })
    })
}

impl Home<'_> {
    /// A realm beside ours.
    fn realm(&self, name: &str) -> Result<ScratchKdc> {
        Ok(ScratchKdc::start(&self.folder.path().join(name), name)?)
    }

    /// Has the KDC read its settings again.
    fn restart(&mut self) -> Result<()> {
        let state = std::fs::read_to_string(self.federation.dir().join("dev.json"))?;
        let state: serde_json::Value = serde_json::from_str(&state)?;
        let pid = state["kdc"]["processes"][0]["pid"].as_i64().context("dev knows its KDC")?;
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid)?).context("a pid is not 0")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let is_gone = || std::net::TcpStream::connect(("127.0.0.1", self.kdc.port())).is_err();
        program::until("the KDC is gone", DEADLINE, is_gone)?;
        Ok(self.kdc.serve()?)
    }

    /// Settings of a user's machine that knows these realms, and whose own is the first.
    fn settings(&self, realms: &[&ScratchKdc]) -> Result<PathBuf> {
        let own = realms.first().context("a user is of a realm")?;
        let mut text = std::fs::read_to_string(own.config())?;
        text.push_str("\n[realms]\n");
        for realm in realms.iter().skip(1).copied().chain([&self.kdc]) {
            let (name, port) = (realm.realm(), realm.port());
            text.push_str(&format!("  {name} = {{\n    kdc = 127.0.0.1:{port}\n  }}\n"));
        }
        text.push_str(&format!("\n[domain_realm]\n  localhost = {HOME}\n\n{PATHS}"));
        let path = self.folder.path().join(format!("{}.conf", own.realm()));
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// The root of the file system, by the name that users' machines know the realm of.
    fn url(&self) -> Result<String> {
        let address = self.federation.process("mds-uf")?["address"].clone();
        let port = address.as_str().and_then(|address| address.rsplit_once(':'));
        Ok(format!("tieline://localhost:{}/extenci", port.context("an MDS has an address")?.1))
    }

    fn id(&self, words: &[&str]) -> Result<String> {
        let mount = self.federation.mount().to_str().context("a plain path")?;
        self.federation.tieline(&[&["id", "--fs", mount], words].concat())
    }

    fn answers_to_localhost(&self) -> Result<()> {
        let name = format!("tieline_mds/localhost@{HOME}");
        self.kdc.keytab("mds-uf.keytab", &[name])?;
        Ok(())
    }
}

/// Lets users of one realm into another.
fn trust(of: &ScratchKdc, to: &ScratchKdc) -> Result<()> {
    let name = format!("krbtgt/{}@{}", to.realm(), of.realm());
    for kdc in [of, to] {
        kdc.admin(&format!("addprinc -pw between-us {name}\n"))?;
    }
    Ok(())
}

/// Runs `program` with somebody's tickets and the settings of his machine.
fn with_tickets(settings: &Path, cache: &str, program: &Path, words: &[&str]) -> Result<Run> {
    let mut command = Command::new(program);
    command.args(words).env("KRB5_CONFIG", settings).env("KRB5CCNAME", cache);
    program::finish(&mut command, DEADLINE)
}

fn kinit(settings: &Path, cache: &str, name: &str, password: &str) -> Result<()> {
    let mut command = Command::new("kinit");
    command.arg(name).env("KRB5_CONFIG", settings).env("KRB5CCNAME", cache);
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), format!("{password}\n"))?;
    command.stdin(Stdio::from(file.reopen()?));
    ensure!(program::wait(&mut program::start(&mut command)?, DEADLINE)?.success(), "kinit {name}");
    Ok(())
}

/// Who `tieline ls` finds somebody to be: what it lists, or why not.
fn listed(settings: &Path, cache: &str, url: &str) -> Result<Run> {
    with_tickets(settings, cache, program::tieline()?, &["ls", url])
}

/// A user of a machine whose krb5.conf is `settings`, on a mount of that machine.
const USER: u32 = 1501;

/// Has somebody write and read through a mount by the keys of a machine, with tickets as the script
/// finds them.
fn on_a_mount(home: &Home, settings: &Path, cache: &str, script: &str) -> Result<Run> {
    let federation = home.federation;
    for path in ["..", "", "kdc"].map(|path| federation.dir().join(path)) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711))?;
    }
    std::fs::set_permissions(home.folder.path(), std::fs::Permissions::from_mode(0o711))?;
    std::fs::set_permissions(settings, std::fs::Permissions::from_mode(0o644))?;
    let (_, place) = cache.split_once(':').context("a cache has a kind")?;
    program::call("chown", &["-R", &USER.to_string(), place])?;
    let mount = home.folder.path().join("mount");
    std::fs::create_dir(&mount)?;
    let keytab = federation.dir().join("kdc/client.keytab");
    let options = format!("idmap=same,krb5conf={},keytab={}", settings.display(), keytab.display());
    let source = home.url()?.replace("tieline://", "").replacen('/', ":/", 1);
    let shown = mount.to_string_lossy().into_owned();
    let words = ["mount", source.as_str(), shown.as_str(), "-o", options.as_str()];
    with_tickets(settings, cache, program::tieline()?, &words)?.succeed("mount")?;
    let mut command = Command::new("setpriv");
    let uid = format!("--reuid={USER}");
    command.args([&uid, "--clear-groups", "sh", "-ec", script]).current_dir("/");
    command.env("KRB5_CONFIG", settings).env("KRB5CCNAME", cache).env("MOUNT", &mount);
    let run = program::finish(command.env("TIELINE", program::tieline()?), DEADLINE);
    federation.unmount(&mount)?;
    std::fs::remove_dir(&mount)?;
    run
}

fn works_on_a_mount(home: &Home, settings: &Path, cache: &str) -> Result<()> {
    if !tieline_lab::is_root() {
        return Ok(());
    }
    home.federation.shell("mkdir -m 777 all")?;
    let run = on_a_mount(home, settings, cache, "echo events > $MOUNT/all/f; cat $MOUNT/all/f")?;
    ensure!(run.succeed("a mount")? == "events\n");
    Ok(())
}

#[test]
fn users_of_other_realms_work_by_direct_trust_and_by_a_chain() -> Result<()> {
    with_home(|home| {
        home.answers_to_localhost()?;
        let (psc, ufl) = (home.realm(PSC)?, home.realm(UFL)?);
        trust(&psc, &home.kdc)?;
        trust(&ufl, &psc)?;
        // Who comes over a third realm is let in only where the way is said to be good.
        let settings = home.kdc.config();
        std::fs::write(&settings, std::fs::read_to_string(&settings)? + "\n" + PATHS)?;
        home.restart()?;
        psc.user("ann", "ann's")?;
        ufl.user("bob", "bob's")?;
        ufl.user("eve", "eve's")?;
        home.id(&["add", "ann", "--principal", "ann@PSC.EDU"])?;
        home.id(&["add", "bob", "--principal", "bob@UFL.EDU"])?;
        home.federation.shell("mkdir -m 755 theirs && echo events > theirs/run7")?;

        let url = home.url()?;
        let near = home.settings(&[&psc])?;
        let far = home.settings(&[&ufl, &psc])?;
        let cache = |name: &str| format!("FILE:{}", home.folder.path().join(name).display());
        kinit(&near, &cache("ann"), "ann@PSC.EDU", "ann's")?;
        let ann = listed(&near, &cache("ann"), &url)?;
        ensure!(ann.stdout.contains("theirs"), "{}{}", ann.stdout, ann.stderr);
        kinit(&far, &cache("bob"), "bob@UFL.EDU", "bob's")?;
        let bob = listed(&far, &cache("bob"), &url)?;
        ensure!(bob.stdout.contains("theirs"), "{}{}", bob.stdout, bob.stderr);

        // A ticket alone is no right.
        kinit(&far, &cache("eve"), "eve@UFL.EDU", "eve's")?;
        let eve = listed(&far, &cache("eve"), &url)?;
        ensure!(!eve.status.success(), "a stranger is let in: {}", eve.stdout);
        ensure!(eve.stderr.contains("eve@UFL.EDU"), "{}", eve.stderr);
        Ok(())
    })
}

#[test]
fn of_several_tickets_the_one_of_the_federations_realm_is_taken() -> Result<()> {
    with_home(|home| {
        home.answers_to_localhost()?;
        let psc = home.realm(PSC)?;
        trust(&psc, &home.kdc)?;
        psc.user("ann", "ann's")?;
        home.kdc.user("carol", "carol's")?;
        home.id(&["add", "carol", "--principal", "carol@EXTENCI.ORG"])?;
        let (settings, url) = (home.settings(&[&psc])?, home.url()?);
        let collection = home.folder.path().join("collection");
        std::fs::create_dir(&collection)?;
        let cache = format!("DIR:{}", collection.display());
        // The later one is the collection's first choice, and is a stranger.
        kinit(&settings, &cache, "carol@EXTENCI.ORG", "carol's")?;
        kinit(&settings, &cache, "ann@PSC.EDU", "ann's")?;
        let found = listed(&settings, &cache, &url)?;
        ensure!(found.status.success(), "{}", found.stderr);
        if !tieline_lab::is_root() {
            return Ok(());
        }
        // The same one through a mount, by a job that takes all along, and when it is explained.
        home.federation.shell("mkdir -m 777 all")?;
        home.id(&["machine", "host/client.extenci.org@EXTENCI.ORG", "root"])?;
        let script = "echo events > $MOUNT/all/run7; cat $MOUNT/all/run7
            $TIELINE auth run -- sh -ec 'cat $MOUNT/all/run7; klist -l | grep -c @'
            $TIELINE explain --json $MOUNT/all/run7";
        let run = on_a_mount(home, &settings, &cache, script)?;
        let said = run.succeed("a collection on a mount")?;
        let (read, explained) = said.split_at(said.find('{').context("an explanation")?);
        ensure!(read == "events\nevents\n2\n", "{read}");
        let explained: serde_json::Value = serde_json::from_str(explained)?;
        ensure!(explained["who"]["principal"] == "carol@EXTENCI.ORG", "{explained}");
        ensure!(explained["allowed"] == true, "{explained}");
        Ok(())
    })
}

/// A certificate authority, a KDC's certificate and a user's, as a grid's authority issues them.
const CERTIFICATES: &str = r#"
cd "$1"
new() { openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.req" -subj "$2" 2>/dev/null; }
issue() { openssl x509 -req -in "$1.req" -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
  -extfile "$1.ext" -out "$1.pem" 2>/dev/null; }
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 \
  -subj "/DC=org/DC=grid/CN=Test CA" 2>/dev/null
new kdc "/DC=org/DC=grid/CN=kdc"
use=keyUsage=digitalSignature,keyEncipherment,keyAgreement
printf "extendedKeyUsage=serverAuth\nsubjectAltName=DNS:localhost\n$use\n" > kdc.ext
issue kdc
new dora "/DC=org/DC=grid/OU=People/CN=Dora"
printf "extendedKeyUsage=clientAuth\n$use\n" > dora.ext
issue dora
"#;

#[test]
fn a_certificate_is_enough_by_pkinit() -> Result<()> {
    with_home(|home| {
        home.answers_to_localhost()?;
        let folder = home.folder.path().join("ca");
        std::fs::create_dir(&folder)?;
        let shown = folder.to_str().context("a plain path")?.to_owned();
        program::call("bash", &["-euc", CERTIFICATES, "certificates", &shown])?;
        // The KDC has a certificate, and knows the user by that of the grid's authority.
        let settings = federation_file(home, "kdc.conf");
        let text = std::fs::read_to_string(&settings)?;
        let pkinit = format!(
            "\n[realms]\n  {HOME} = {{\n    \
             pkinit_identity = FILE:{shown}/kdc.pem,{shown}/kdc.key\n    \
             pkinit_anchors = FILE:{shown}/ca.pem\n    pkinit_eku_checking = none\n  }}\n"
        );
        std::fs::write(&settings, text + &pkinit)?;
        home.kdc.admin(
            "addprinc -nokey +requires_preauth dora\n\
             set_string dora pkinit_cert_match <SUBJECT>.*CN=Dora.*\n",
        )?;
        home.restart()?;
        home.id(&["add", "dora", "--principal", "dora@EXTENCI.ORG"])?;
        let (url, cache) =
            (home.url()?, format!("FILE:{}", home.folder.path().join("d").display()));
        let own = home.folder.path().join("dora.conf");
        let known = std::fs::read_to_string(home.kdc.config())?;
        let more = format!(
            "\n[realms]\n  {HOME} = {{\n    pkinit_anchors = FILE:{shown}/ca.pem\n    \
             pkinit_kdc_hostname = localhost\n    pkinit_eku_checking = kpServerAuth\n  }}\n\
             [domain_realm]\n  localhost = {HOME}\n"
        );
        std::fs::write(&own, known + &more)?;
        let identity = format!("X509_user_identity=FILE:{shown}/dora.pem,{shown}/dora.key");
        let got = with_tickets(&own, &cache, Path::new("kinit"), &["-X", &identity, "dora"])?;
        ensure!(got.status.success(), "kinit: {}", got.stderr);
        let dora = listed(&own, &cache, &url)?;
        ensure!(dora.status.success(), "{}", dora.stderr);
        works_on_a_mount(home, &own, &cache)
    })
}

fn federation_file(home: &Home, name: &str) -> PathBuf {
    home.federation.dir().join("kdc").join(name)
}

#[test]
fn a_replica_serves_while_the_master_is_away() -> Result<()> {
    with_home(|home| {
        home.answers_to_localhost()?;
        home.kdc.user("carol", "carol's")?;
        home.id(&["add", "carol", "--principal", "carol@EXTENCI.ORG"])?;
        home.restart()?;
        let mut replica = home.kdc.replica(&home.folder.path().join("replica"))?;
        replica.serve()?;
        // The site's settings name both; the master is gone.
        let own = home.folder.path().join("carol.conf");
        let known = std::fs::read_to_string(home.kdc.config())?;
        let port = replica.port();
        let both = format!(
            "\n[realms]\n  {HOME} = {{\n    kdc = 127.0.0.1:{port}\n  }}\n\
             [domain_realm]\n  localhost = {HOME}\n"
        );
        std::fs::write(&own, known + &both)?;
        home.kdc.stop();
        let cache = format!("FILE:{}", home.folder.path().join("carol").display());
        kinit(&own, &cache, "carol", "carol's")?;
        let carol = listed(&own, &cache, &home.url()?)?;
        ensure!(carol.status.success(), "{}", carol.stderr);
        works_on_a_mount(home, &own, &cache)
    })
}
