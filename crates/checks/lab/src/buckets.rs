//! Stores behind S3, and buckets in them: moto, which keeps objects in its memory, and SeaweedFS,
//! which checks signatures and keeps them on its disk. Both are others' programs, from PyPI.
//!
//! Everything runs on loopback, below a test's folder, and ends with it.

use crate::program;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Who may do everything.
pub const ACCESS_KEY: &str = "tieline-lab";
pub const SECRET_KEY: &str = "a/secret+of=the-lab";

/// What keeps the buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Moto,
    Seaweed,
}

/// A store. Dropped, it is taken down.
pub struct Buckets {
    kind: Kind,
    python: PathBuf,
    folder: PathBuf,
    /// Of its four servers, and of their gRPC: by itself SeaweedFS takes those 10,000 higher, where
    /// the servers of a federation are.
    ports: [u16; 8],
    process: Option<Child>,
}

impl Buckets {
    /// Keeps all that it has below `folder`. `python`: of the environment that has both programs.
    pub fn start(kind: Kind, python: &Path, folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        let mut ports = [0; 8];
        for at in 0..ports.len() {
            let is_new = |port: &u16| !ports.contains(port);
            let mut found = std::iter::repeat_with(program::free_port);
            ports[at] =
                found.find(|port| port.as_ref().map_or(true, is_new)).context("a port")??;
        }
        let python = python.to_owned();
        let mut buckets = Self { kind, python, folder, ports, process: None };
        buckets.resume()?;
        Ok(buckets)
    }

    /// `http://HOST:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// A file with the access key.
    pub fn credentials(&self) -> Result<PathBuf> {
        let path = self.folder.join("credentials");
        let text = format!("access_key_id = {ACCESS_KEY}\nsecret_access_key = {SECRET_KEY}\n");
        fs::write(&path, text)?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        Ok(path)
    }

    /// Kills it. What moto had is gone then.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            program::kill_group(&process);
            let _ = process.wait();
        }
    }

    /// Starts it, again perhaps, and waits until it answers.
    pub fn resume(&mut self) -> Result<()> {
        let log = File::create(self.folder.join("store.log"))?;
        let mut command = match self.kind {
            Kind::Moto => self.moto(),
            Kind::Seaweed => self.seaweed()?,
        };
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = program::start(&mut command).context("`setup.sh python` installs it")?;
        self.process = Some(child);
        let [port, ..] = self.ports;
        let is_up = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        program::until("the store listens", PATIENCE, is_up).with_context(|| self.log())?;
        // It may listen before it can do anything.
        let answers = || self.ask("s3.list_buckets()").is_ok();
        program::until("the store answers", PATIENCE, answers).with_context(|| self.log())
    }

    fn moto(&self) -> Command {
        let mut command = Command::new(self.python.with_file_name("moto_server"));
        command.args(["-H", "127.0.0.1", "-p", &self.ports[0].to_string()]);
        command
    }

    fn seaweed(&self) -> Result<Command> {
        let users = self.folder.join("users.json");
        let actions = r#"["Admin", "Read", "Write", "List", "Tagging"]"#;
        fs::write(
            &users,
            format!(
                r#"{{"identities": [{{"name": "lab", "actions": {actions}, "credentials":
                [{{"accessKey": "{ACCESS_KEY}", "secretKey": "{SECRET_KEY}"}}]}}]}}"#
            ),
        )?;
        let data = self.folder.join("data");
        fs::create_dir_all(&data)?;
        let mut command = Command::new(self.python.with_file_name("weed"));
        command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]);
        command.arg(format!("-dir={}", data.display()));
        command.arg(format!("-s3.config={}", users.display()));
        command.args(["-master.volumeSizeLimitMB=64", "-volume.max=200"]);
        // A master that was killed waits for others to elect it, whom it has not.
        command.args(["-master.electionTimeout=1s", "-master.resumeState=false"]);
        // Nothing at ports that were not asked for, and nothing told to anybody outside.
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]);
        let (ports, grpc_ports) = self.ports.split_at(4);
        for (name, (port, grpc)) in
            ["s3", "master", "volume", "filer"].iter().zip(ports.iter().zip(grpc_ports))
        {
            command.arg(format!("-{name}.port={port}")).arg(format!("-{name}.port.grpc={grpc}"));
        }
        command.current_dir(&self.folder);
        Ok(command)
    }

    /// What a client of others (boto3) says to a line of Python, in which `s3` is the store.
    pub fn ask(&self, line: &str) -> Result<String> {
        let script = format!(
            "import boto3, botocore.config\n\
             s3 = boto3.client('s3', endpoint_url='{}', region_name='us-east-1',\n\
             \x20 aws_access_key_id='{ACCESS_KEY}', aws_secret_access_key='{SECRET_KEY}',\n\
             \x20 config=botocore.config.Config(connect_timeout=5, read_timeout=20,\n\
             \x20   retries={{'max_attempts': 1}}))\n\
             print({line})",
            self.endpoint()
        );
        let mut command = Command::new(&self.python);
        program::finish(command.args(["-c", &script]), PATIENCE)?.succeed(line)
    }

    pub fn make(&self, bucket: &str) -> Result<()> {
        self.ask(&format!("s3.create_bucket(Bucket='{bucket}')")).map(drop)
    }

    /// The keys below a prefix, up to 1000.
    pub fn keys(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        let line = format!(
            "'\\n'.join(o['Key'] for o in \
             s3.list_objects_v2(Bucket='{bucket}', Prefix='{prefix}').get('Contents', []))"
        );
        Ok(self.ask(&line)?.split_whitespace().map(str::to_owned).collect())
    }

    /// The last lines of its log, for whoever reads of a failure.
    fn log(&self) -> String {
        let text = fs::read_to_string(self.folder.join("store.log")).unwrap_or_default();
        let last: Vec<&str> = text.lines().rev().take(20).collect();
        last.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Buckets {
    fn drop(&mut self) {
        self.kill();
    }
}
