//! The emulated line of a federation, as a benchmark uses it: changed while the federation stands,
//! what crosses it counted by itself, and iperf3 run over it.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Duration;
use tieline_lab::{Federation, program};

/// The rate of lines here, in each direction.
pub const RATE: &str = "1gbit";
/// What such a line carries of a file, in MB/s.
pub const LINK: f64 = 117.7;
/// As many seconds as a gibibyte takes, about.
const IPERF_SECONDS: &str = "8";
/// An iperf3 that was started listens by then.
const STARTING: Duration = Duration::from_millis(500);

pub struct Line<'f> {
    federation: &'f Federation,
    /// Network namespaces: of the first site's servers, and of clients.
    servers: String,
    clients: String,
}

impl<'f> Line<'f> {
    pub fn of(federation: &'f Federation) -> Result<Self> {
        let state = std::fs::read_to_string(federation.dir().join("dev.json"))?;
        let state: serde_json::Value = serde_json::from_str(&state)?;
        let made = state["network"]["made"].as_array().context("namespaces were made")?.clone();
        let ending = |end: &str| -> Result<String> {
            let mut names = made.iter().filter_map(|name| name.as_str());
            let found = names.find(|name| name.ends_with(end)).map(str::to_owned);
            found.with_context(|| format!("no namespace ends with {end}"))
        };
        Ok(Self { federation, servers: ending("-uf")?, clients: ending("-cl")? })
    }

    /// Gives it a round trip of so many milliseconds.
    pub fn set_rtt(&self, milliseconds: &str) -> Result<()> {
        self.order(&["rtt", &format!("{milliseconds}ms")]).map(drop)
    }

    pub fn set_loss(&self, loss: &str) -> Result<()> {
        self.order(&["loss", loss]).map(drop)
    }

    /// What it has brought to clients so far.
    pub fn bytes(&self) -> Result<f64> {
        let told: serde_json::Value = serde_json::from_str(&self.order(&["show", "--json"])?)?;
        told[0]["to_clients"]["bytes"].as_f64().context("bytes are counted")
    }

    fn order(&self, words: &[&str]) -> Result<String> {
        let words = ["dev", "wan"].iter().chain(words).map(OsString::from);
        let all: Vec<_> =
            words.chain(["--dir".into(), self.federation.dir().into_os_string()]).collect();
        self.federation.tieline(&all)
    }

    /// Has connections that are made from now on, of both ends, keep to one congestion control,
    /// whatever programs ask for. It is a word of the routes: namespaces may not choose for
    /// themselves what the machine keeps for root.
    pub fn pin_congestion(&self, control: &str) -> Result<()> {
        self.change_routes(&["congctl", "lock", control])
    }

    /// Lets programs choose again.
    pub fn unpin_congestion(&self) -> Result<()> {
        self.change_routes(&[])
    }

    fn change_routes(&self, words: &[&str]) -> Result<()> {
        for (netns, family) in
            [&self.servers, &self.clients].map(|n| [(n, "-4"), (n, "-6")]).concat()
        {
            let ip =
                |words: &[&str]| program::call("ip", &[&[family, "-n", netns], words].concat());
            let route = ip(&["route", "show", "default"])?;
            let route: Vec<&str> = route.split_whitespace().take(5).collect();
            let [_, "via", gateway, "dev", device] = route.as_slice() else {
                bail!("{netns} has a default route that is not understood: {route:?}");
            };
            let route = ["route", "replace", "default", "via", gateway, "dev", device];
            ip(&[&route[..], words].concat())?;
        }
        Ok(())
    }

    /// MB/s of one stream of iperf3, to the clients or from them.
    pub fn iperf(&self, is_to_clients: bool) -> Result<f64> {
        let within = |netns: &str| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", netns, "iperf3"]);
            command
        };
        let mut server = within(&self.servers);
        // ip(8) would be found where iperf3 is not.
        let is_there = Command::new("iperf3").arg("-v").stdout(Stdio::null()).status();
        is_there.context("iperf3 is needed: `apt-get install iperf3`")?;
        let server = server.args(["-s", "-1"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = server.spawn()?;
        std::thread::sleep(STARTING);
        let mut client = within(&self.clients);
        client.args(["-c", "10.77.1.2", "-t", IPERF_SECONDS, "-J"]);
        if is_to_clients {
            client.arg("-R");
        }
        let output = client.output()?;
        if !output.status.success() {
            // Nobody came, and nobody will.
            let _ = server.kill();
        }
        let _ = server.wait();
        let told: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        ensure!(output.status.success(), "iperf3: {}", told["error"]);
        let bits = told["end"]["sum_received"]["bits_per_second"].as_f64();
        Ok(bits.context("iperf3 tells a rate")? / 8e6)
    }
}
