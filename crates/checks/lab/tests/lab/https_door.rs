//! The door over https, with stock clients (curl, davix, gfal, rclone) and with a client of our own
//! that knows the protocols only (`https_door/check.py`).

use super::lies::{forge, objects};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tieline_lab::federation::with_plan;
use tieline_lab::program::{self, DEADLINE, until};
use tieline_lab::{Federation, Plan, has_kdc, needs_root};

/// What lies there, whose it is, and who may read it.
const TREE: &str = "mkdir -m 1777 data data/sticky && mkdir -m 777 data2 data/deep data/many && \
    head -c 9000000 /dev/urandom > data/file && cp data/file data2/file && \
    cp data/file data/deep/file && : > data/empty && ln -s ../data2/file data/out && \
    ln -s file data/in && printf odd > 'data/ä b%&#?+\"'\\''.txt' && \
    for n in $(seq 700); do echo $n > data/many/f$n; done && mkdir data/many/d && \
    for f in hers his groups listed; do echo $f > data/$f; chmod 600 data/$f; done && \
    mkdir -m 700 data/closed && echo x > data/closed/file && echo x > data/sticky/his && \
    chown 12001 data/hers data/groups && chown 12002 data/his data/closed data/closed/file && \
    chown 12002 data/sticky/his && chmod 666 data/sticky/his && \
    chown 0:13001 data/groups && chmod 640 data/groups && \
    chown 12003 data/listed && setfacl -m u:12002:r data/listed && sync -f data";

/// A federation with a door, two users, and what lies there.
struct Scene<'f> {
    lab: &'f Federation,
    url: String,
    authority: PathBuf,
}

impl<'f> Scene<'f> {
    fn new(lab: &'f Federation) -> Result<Self> {
        let status = lab.status()?;
        let text = |key: &str| {
            let text = status["door"][key].as_str().context("a door is there");
            text.map(str::to_owned)
        };
        let scene = Self { lab, url: text("https")?, authority: text("authority")?.into() };
        let mount = lab.mount().to_string_lossy().into_owned();
        let id = |words: &[&str]| lab.tieline(&[&["id", "--fs", &mount], words].concat());
        id(&["add", "cms", "--group", "--number", "13001"])?;
        id(&["add", "ann", "--number", "12001", "--groups", "cms"])?;
        id(&["add", "bob", "--number", "12002"])?;
        scene.check(&["keys"], &[])?;
        let keys = scene.keys().join("jwks.json");
        let users = ["--user", "sub:ann=ann", "--user", "sub:bob=bob", "--user", "sub:carl=carl"];
        lab.tieline(
            &[
                &["issuer", "--fs", &mount, "add", "https://iam.lab.example/", "--keys"],
                &[&*keys.to_string_lossy(), "--audience", &scene.url][..],
                &users,
            ]
            .concat(),
        )?;
        lab.shell(TREE)?;
        Ok(scene)
    }

    fn keys(&self) -> PathBuf {
        self.lab.local("keys")
    }

    fn script(&self, words: &[&str], more: &[&str]) -> Command {
        let mut command = Command::new("/usr/bin/python3");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/https_door");
        command.arg(folder.join("check.py")).args(words).arg(self.keys()).args(more);
        command
    }

    fn check(&self, words: &[&str], more: &[&str]) -> Result<String> {
        program::finish(&mut self.script(words, more), DEADLINE)?.succeed("check.py")
    }

    fn authority(&self) -> String {
        self.authority.to_string_lossy().into_owned()
    }

    /// A shell with what clients of the grid look for; it must succeed. What it printed.
    fn shell(&self, scope: &str, script: &str) -> Result<String> {
        let token = self.check(&["token"], &[&self.url, "ann", scope])?;
        let folder = self.authority.parent().context("it lies in a folder")?;
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", script]).current_dir(self.lab.local("."));
        command.env("URL", &self.url).env("DAVS", self.url.replace("https://", "davs://"));
        command.env("BEARER_TOKEN", token.trim()).env("X509_CERT_DIR", folder);
        command.env("CA", &self.authority).env("M", self.lab.mount());
        // Another Python that stands before the distribution's has no gfal2.
        command.env("GFAL_PYTHONBIN", "/usr/bin/python3").env("HOME", self.lab.local("."));
        program::finish(&mut command, DEADLINE)?.succeed(script)
    }

    /// The promise of an upload, when its door dies in the middle.
    fn dies(&self) -> Result<()> {
        let mut half = self.script(&["half"], &[&self.url, &self.authority(), "/data/half"]);
        let mut half = program::start(half.stdout(Stdio::piped()))?;
        let mut told = String::new();
        BufReader::new(half.stdout.take().context("its words")?).read_line(&mut told)?;
        ensure!(told == "half\n", "{told}");
        self.lab.signal("door-uf", Signal::KILL)?;
        program::wait(&mut half, DEADLINE)?;
        let missing = |name: &str| !self.lab.mount().join("data").join(name).exists();
        ensure!(missing("half"), "half a file is seen");
        self.lab.kill_and_restart("door-uf").or_else(|_| self.start())?;
        // The door that came has nothing of it either, and takes it anew.
        let put = "curl -sf --cacert $CA -H \"Authorization: Bearer $BEARER_TOKEN\"";
        let all = format!(
            "test $({put} -o /dev/null -w '%{{http_code}}' $URL/data/half || true) = 404 && \
             {put} -T $M/data/file $URL/data/half && cmp $M/data/file $M/data/half"
        );
        self.shell("storage.read:/data storage.modify:/data", &all).map(drop)
    }

    fn start(&self) -> Result<()> {
        let dir = self.lab.dir();
        let words = ["dev", "start", "door-uf", "--dir", &*dir.to_string_lossy()].map(String::from);
        self.lab.tieline(&words).map(drop)
    }

    /// Another certificate is shown without a restart.
    fn renewed(&self) -> Result<()> {
        let show = "echo | openssl s_client -connect ${URL#https://} -CAfile $CA 2>/dev/null | \
                    openssl x509 -noout -serial";
        let renew = "cd $(dirname $CA) && openssl x509 -req -in host.csr -CA ca.pem -CAkey ca.key \
                     -set_serial 77 -days 30 -extfile openssl.conf -extensions host -out new.pem \
                     2>/dev/null && mv new.pem host.pem";
        self.shell("storage.read:/data", renew)?;
        until("the door shows another certificate", Duration::from_secs(30), || {
            self.shell("storage.read:/data", show).is_ok_and(|said| said.contains("=4D"))
        })
    }
}

/// Promise 130: Who comes to a door over https may do there what he may on a mount, and no more.
///
/// Promise 131: A token opens what its scope names and what lies below it, by whole names: one for
/// `/data` does not open `/data2`.
///
/// Promise 132: A file that is put through a door is seen by nobody before all of it is there, and
/// by everybody then; when the door has answered it is durable.
///
/// Promise 133: An upload that breaks off leaves nothing, whether its client, the line or the door
/// ended.
///
/// Promise 134: Bytes that a door gives, whole or in ranges, are those that a mount reads, and the
/// checksum that it tells is theirs.
///
/// Promise 135: Who shows no token, or none that is good now, or is nobody here, is told so with
/// what to do, and nothing else.
#[test]
fn a_door_over_https() -> Result<()> {
    if !needs_root() || !has_kdc() {
        return Ok(());
    }
    let plan = Plan { is_open: true, ..Plan::proven(&["--kerberos", "--doors", "--sites", "uf"]) };
    with_plan(&plan, |lab| {
        let scene = Scene::new(lab)?;
        let mount = lab.mount().to_string_lossy().into_owned();
        scene.check(&["all"], &[&scene.url, &scene.authority(), &mount]).context("our client")?;
        stock_clients(&scene).context("stock clients")?;
        own_tokens(&scene).context("tokens of `dev token`")?;
        events(&scene).context("events")?;
        full(&scene).context("a full quota")?;
        false_bytes(&scene).context("a data server that lies")?;
        lab.expect_log("door-uf");
        scene.dies().context("a door that dies")?;
        scene.renewed().context("another certificate")
    })
}

/// The same bytes and sums as on the mount, and no way beside the scope.
fn stock_clients(scene: &Scene<'_>) -> Result<()> {
    let both = "storage.read:/data storage.modify:/data";
    let get = "curl -sSf --cacert $CA -H \"Authorization: Bearer $BEARER_TOKEN\"";
    let curl = format!(
        "{get} $URL/data/file | cmp - $M/data/file
         {get} -T $M/data/file $URL/data/curl && cmp $M/data/curl $M/data/file
         test \"$({get} -r 0-9,100-109 $URL/data/file | grep -ac Content-Range)\" = 2
         ! {get} $URL/data2/file 2>/dev/null"
    );
    scene.shell(both, &curl).context("curl")?;
    let davix = "D=(--capath $X509_CERT_DIR -H \"Authorization: Bearer $BEARER_TOKEN\")
         davix-get \"${D[@]}\" $URL/data/file davix && cmp davix $M/data/file
         davix-put \"${D[@]}\" davix $URL/data/davix && cmp $M/data/davix davix
         davix-ls -l \"${D[@]}\" $URL/data | grep -q '9000000 .* davix$'
         davix-rm \"${D[@]}\" $URL/data/davix && test ! -e $M/data/davix
         ! davix-get \"${D[@]}\" $URL/data2/file out 2>/dev/null";
    scene.shell(both, davix).context("davix")?;
    let gfal = "SUM=$(tieline_sum() { python3 -c \"import sys,zlib
print('%08x' % zlib.adler32(open(sys.argv[1],'rb').read()))\" $1; }; tieline_sum $M/data/file)
         test \"$(gfal-sum $DAVS/data/file ADLER32 | cut -d' ' -f2)\" = $SUM
         gfal-copy -K ADLER32 $DAVS/data/file file://$PWD/gfal >/dev/null && cmp gfal $M/data/file
         gfal-copy -p -K ADLER32 file://$PWD/gfal $DAVS/data/new/below/gfal >/dev/null
         cmp $M/data/new/below/gfal gfal
         gfal-ls $DAVS/data/new/below | grep -qx gfal
         gfal-copy -K ADLER32 $DAVS/data/file $DAVS/data/new/again >/dev/null 2>&1
         cmp $M/data/new/again gfal
         ! gfal-copy $DAVS/data2/file file://$PWD/out >/dev/null 2>&1";
    scene.shell(both, gfal).context("gfal")?;
    let rclone = "export RCLONE_CA_CERT=$CA
         R=\":webdav,url='$URL',bearer_token='$BEARER_TOKEN',vendor=other:\"
         rclone -q copy \"${R}data/deep\" rclone && cmp rclone/file $M/data/deep/file
         rclone -q copy rclone \"${R}data/rclone\" && cmp $M/data/rclone/file rclone/file
         test $(rclone -q ls \"${R}data/many\" | wc -l) = 700";
    scene.shell(both, rclone).context("rclone").map(drop)
}

/// What a person tries first.
fn own_tokens(scene: &Scene<'_>) -> Result<()> {
    let dir = scene.lab.dir();
    let dir = dir.to_string_lossy();
    let words = ["dev", "token", "ann", "--scope", "storage.read:/data", "--dir", &dir];
    let token = scene.lab.tieline(&words)?;
    let script = format!(
        "curl -sSf --cacert $CA -H 'Authorization: Bearer {}' $URL/data/file | cmp - $M/data/file",
        token.trim()
    );
    scene.shell("storage.read:/data", &script)?;
    let tickets = scene.lab.dir().join("kdc/krb5.conf");
    let negotiate = format!(
        "export KRB5_CONFIG={} KRB5CCNAME=FILE:$PWD/ticket; echo ann | kinit ann >/dev/null
         curl -sSf --cacert $CA --negotiate -u : $URL/data2/file | cmp - $M/data2/file",
        tickets.display()
    );
    scene.shell("storage.read:/data", &negotiate).map(drop)
}

/// The same events as on the mount.
fn events(scene: &Scene<'_>) -> Result<()> {
    let Some(python) = tieline_lab::python() else { return Ok(()) };
    let script = "
import os, sys, numpy, uproot
mount, url, token = (os.environ[name] for name in ['M', 'URL', 'BEARER_TOKEN'])
dice = numpy.random.default_rng(7)
with uproot.recreate(f'{mount}/data/events.root') as file:
    for part in range(3):
        columns = {'x': dice.normal(size=40000), 'n': dice.integers(0, 99, 40000)}
        file['events'].extend(columns) if part else file.__setitem__('events', columns)
os.sync()
there = uproot.open(f'{mount}/data/events.root')['events'].arrays(library='np')
name = f'{url}/data/events.root?authz=Bearer%20{token}'
with uproot.open(name, handler=uproot.HTTPSource) as file:
    here = file['events'].arrays(library='np')
assert len(here['x']) == 120000 and all((here[key] == there[key]).all() for key in there)
";
    let program = scene.lab.local("events.py");
    std::fs::write(&program, script)?;
    let run = format!("SSL_CERT_FILE=$CA {} {}", python.display(), program.display());
    scene.shell("storage.read:/data", &run).map(drop)
}

/// Who has no room is told so, and nothing is left.
fn full(scene: &Scene<'_>) -> Result<()> {
    let mount = scene.lab.mount().to_string_lossy().into_owned();
    scene.lab.tieline(&["setquota", "-u", "ann", "-B", "1M", &mount])?;
    let script = "SAID=$(curl -s --cacert $CA -H \"Authorization: Bearer $BEARER_TOKEN\" \
             -T $M/data/file -w '%{http_code}' $URL/data/full)
         grep -q 'quota.*507' <<< $(echo $SAID) && test ! -e $M/data/full";
    scene.shell("storage.modify:/data", script)?;
    scene.lab.tieline(&["setquota", "-u", "ann", "-B", "0", &mount]).map(drop)
}

/// What a data server invented ends the answer, and none of it is sent.
fn false_bytes(scene: &Scene<'_>) -> Result<()> {
    scene.lab.shell("head -c 3000000 /dev/zero | tr '\\0' x > data/false && sync data/false")?;
    scene.lab.expect_log("does not match its checksum");
    let (objects, _) = objects(scene.lab, &scene.lab.mount().join("data/false"), "uf")?;
    objects.iter().try_for_each(|object| forge(object, true))?;
    let script = "for RANGE in 0-2999999 2000000-2000009; do
             ! curl -sf --cacert $CA -H \"Authorization: Bearer $BEARER_TOKEN\" \
                 -r $RANGE -o false $URL/data/false
             touch false; test \"$(tr -d x < false | wc -c)\" = 0; rm false
         done";
    scene.shell("storage.read:/data", script).map(drop)
}
