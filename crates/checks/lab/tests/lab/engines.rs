//! Metadata in PostgreSQL: the same work as on the embedded engine, on a real server that this test
//! starts. Without it the test fails; `make test` installs it.

use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use tieline_kv::scratch::{ScratchServer, fast_folder};
use tieline_lab::federation::{Plan, with_plan};
use tieline_lab::program;

/// A server and its folder, which every user can pass through.
fn server() -> Result<(ScratchServer, tempfile::TempDir)> {
    let folder = tempfile::Builder::new().prefix("tieline-lab-db-").tempdir_in(fast_folder())?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let server = ScratchServer::start(folder.path()).context("`make test` installs PostgreSQL")?;
    Ok((server, folder))
}

fn plan(server: &ScratchServer) -> Plan {
    let engine = format!("postgres={}", server.words());
    Plan { arguments: vec!["--engine".to_owned(), engine], ..Plan::default() }
}

/// What the database says to a query.
fn query(server: &ScratchServer, text: &str) -> Result<String> {
    let mut psql = std::process::Command::new("psql");
    let psql = psql.args(["-X", "-A", "-t", "-c", text]).arg(server.words());
    Ok(program::finish(psql, Duration::from_secs(20))?.succeed("psql")?.trim().to_owned())
}

/// Writes files until `$STOP` is there, and says how many. A process of its own: one that this
/// test starts would else wait at its execve for the close of a file, and so for the database that
/// it is to start.
const WORK: &str = r#"
n=0
while [ ! -e "$STOP" ]; do
  head -c 40000 /dev/zero | tr '\0' '\7' > new
  sync new
  mv new f$n
  n=$((n + 1))
done
echo $n
"#;

#[test]
fn a_database_that_is_away_is_named_before_anything_is_made() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut up = std::process::Command::new(program::tieline()?);
    up.args(["dev", "up", "--engine", "postgres=host=/nowhere dbname=none", "--dir"]);
    let run = program::finish(up.arg(folder.path().join("dev")), Duration::from_secs(60))?;
    ensure!(!run.status.success() && run.stderr.contains("/nowhere"), "{}", run.stderr);
    ensure!(fs::read_dir(folder.path())?.next().is_none(), "something was made");
    Ok(())
}

#[test]
fn a_federation_works_on_postgresql_and_leaves_nothing_there() -> Result<()> {
    let (server, _folder) = server()?;
    with_plan(&plan(&server), |lab| {
        lab.shell(
            "mkdir -p a/b && echo small > a/b/small && head -c 3000000 /dev/zero > a/large \
             && mv a/b/small a/moved && ln a/moved a/hard && ln -s moved a/soft && rm a/moved \
             && mkdir fnal/far && cp a/large fnal/far/ && setfattr -n user.k -v v a/hard",
        )?;
        let schemas = query(&server, "SELECT count(*) FROM pg_namespace WHERE nspname ~ '^dev_'")?;
        ensure!(schemas == "2", "each MDT has a schema of its own: {schemas}");
        lab.kill_and_restart("mds-uf")?;
        lab.kill_and_restart("mds-fnal")?;
        let far = lab.mount_again()?;
        let said = program::shell(
            &far,
            "cat a/hard && readlink a/soft && stat -c %s a/large fnal/far/large && ls a \
             && getfattr --only-values -n user.k a/hard",
        )?;
        ensure!(said == "small\nmoved\n3000000\n3000000\nb\nhard\nlarge\nsoft\nv", "{said}");
        Ok(())
    })?;
    let left = query(&server, "SELECT count(*) FROM pg_namespace WHERE nspname ~ '^dev_'")?;
    ensure!(left == "0", "{left} schemas are left in the database");
    Ok(())
}

#[test]
fn the_database_is_restarted_in_the_middle_of_work() -> Result<()> {
    let (mut server, _folder) = server()?;
    let plan = plan(&server);
    with_plan(&plan, |lab| {
        lab.expect_log("waiting for the database");
        let stop = lab.local("stop");
        let script = format!("STOP={}\n{WORK}", stop.display());
        let written = std::thread::scope(|scope| -> Result<usize> {
            let worker = scope.spawn(|| Ok(lab.shell(&script)?.trim().parse()?));
            let mut trouble = || -> Result<()> {
                for round in 0..3 {
                    std::thread::sleep(Duration::from_millis(400));
                    if round == 1 {
                        server.stop()?
                    } else {
                        server.kill()?
                    }
                    if round == 2 {
                        lab.signal("mds-uf", rustix::process::Signal::KILL)?;
                    }
                    server.start_again()?;
                    if round == 2 {
                        let start = ["dev", "start", "mds-uf", "--dir"].map(OsStr::new);
                        lab.tieline(&[&start[..], &[lab.dir().as_os_str()]].concat())?;
                    }
                }
                Ok(())
            };
            let outcome = trouble();
            std::thread::sleep(Duration::from_millis(300));
            File::create(&stop)?;
            let written = worker.join().map_err(|_| anyhow::anyhow!("the worker panicked"))?;
            outcome.and(written)
        })?;
        ensure!(written > 3, "only {written} files in all that time");
        let far = lab.mount_again()?;
        for number in 0..written {
            let read = fs::read(far.join(format!("f{number}")))?;
            ensure!(read == vec![7; 40_000], "file {number} changed");
        }
        Ok(())
    })
}
