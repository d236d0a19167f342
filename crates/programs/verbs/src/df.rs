//! `tieline df` and `tieline ost list`: space per OST and per pool.

use crate::known;
use crate::shell::{self, Shell};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Write};
use tieline_base::location::Location;
use tieline_base::show;
use tieline_format::map::FederationMap;
use tieline_types::{ByteSize, OstIndex, Shown};
use tieline_wire::data::OstState;
use tieline_wire::meta::OstUsage;

#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Sizes in units people read
    #[arg(short = 'h')]
    human: bool,
    /// Objects instead of bytes
    #[arg(short = 'i', long)]
    inodes: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Path below the file system, or tieline://HOST[:PORT]/FS
    #[arg(long)]
    fs: Option<OsString>,
    /// The same, without --fs
    path: Option<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let shows = if args.inodes { Shows::Objects } else { Shows::Bytes(args.human) };
    show_space(args.fs.or(args.path), shows, args.json, true)
}

/// `tieline ost list`.
pub fn list(fs: Option<OsString>, is_json: bool) -> anyhow::Result<()> {
    show_space(fs, Shows::Bytes(true), is_json, false)
}

/// What there is room for: bytes (in units people read?), or objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shows {
    Bytes(bool),
    Objects,
}

fn show_space(
    typed: Option<OsString>,
    shows: Shows,
    is_json: bool,
    with_pools: bool,
) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find_word(typed.as_deref())?;
    if let Some(site) = known::away(&location) {
        return show_known(&location, &site, (shows, is_json, with_pools));
    }
    shell::run(&location, |shell| async move {
        let rows = rows(&shell).await?;
        let map = shell.files.map();
        let mut out = io::stdout().lock();
        if is_json {
            writeln!(out, "{}", space_json(&map, &rows))?;
            return Ok(());
        }
        let size = |amount: u64| match shows {
            Shows::Bytes(true) => ByteSize(amount).to_string(),
            Shows::Bytes(false) => (amount >> 10).to_string(),
            Shows::Objects => amount.to_string(),
        };
        let unit = match shows {
            Shows::Bytes(true) => "bytes",
            Shows::Bytes(false) => "1K-blocks",
            Shows::Objects => "objects",
        };
        writeln!(
            out,
            "{:<20} {:<10} {unit:>12} {:>12} {:>12} {:>4}  state",
            "OST", "site", "used", "free", "use%"
        )?;
        for row in &rows {
            let name = format!("{}-{}", map.fs, row.ost.label());
            line(&mut out, &name, row.site.as_str(), &row.room(shows), &size, &row.state)?;
        }
        if with_pools {
            for pool in &map.pools {
                let members = rows.iter().filter(|row| pool.osts.contains(&row.ost));
                let space = sum_of(members, shows);
                line(&mut out, &format!("{}.{}", map.fs, pool.name), "", &space, &size, "pool")?;
            }
            line(&mut out, "all", "", &sum_of(rows.iter(), shows), &size, "")?;
        }
        Ok(())
    })
}

/// What the mount heard last: the sum is all that it keeps.
fn show_known(
    location: &Location,
    site: &str,
    (shows, is_json, with_pools): (Shows, bool, bool),
) -> anyhow::Result<()> {
    let mount = location.mountpoint.as_deref().filter(|_| with_pools && shows != Shows::Objects);
    let mount = mount.ok_or_else(|| known::refused(location, site))?;
    let (total, free) = known::space(mount)?;
    if is_json {
        let used = total.saturating_sub(free);
        let all = json!({ "total": total, "free": free, "used": used });
        println!("{}", json!({ "away": site, "osts": [], "pools": [], "all": all }));
        return Ok(());
    }
    let size = |amount: u64| match shows {
        Shows::Bytes(true) => ByteSize(amount).to_string(),
        _ => (amount >> 10).to_string(),
    };
    let state = format!("as last heard: {site} is out of reach");
    line(&mut io::stdout().lock(), "all", "", &Some(Space { total, free }), &size, &state)?;
    Ok(())
}

/// One OST.
struct Row {
    ost: OstIndex,
    site: String,
    space: Option<Space>,
    state: String,
    usage: OstUsage,
}

#[derive(Clone, Copy, Default)]
struct Space {
    total: u64,
    free: u64,
}

async fn rows(shell: &Shell) -> anyhow::Result<Vec<Row>> {
    let usages = shell.files.usage().await?;
    Ok(usages.into_iter().map(Row::new).collect())
}

impl Row {
    fn new(usage: OstUsage) -> Self {
        let space = usage.state.as_ref();
        let space = space.map(|s| Space { total: s.bytes_total, free: s.bytes_free });
        let trouble = usage.state.as_ref().and_then(|state| state.trouble.clone());
        let state = match (&usage.state, trouble, usage.is_active) {
            (None, _, _) => "no answer".to_owned(),
            (_, Some(trouble), _) => Shown(trouble.as_bytes()).to_string(),
            (_, None, true) => "active".to_owned(),
            (_, None, false) => "inactive".to_owned(),
        };
        Self { ost: usage.ost, site: usage.site.to_string(), space, state, usage }
    }

    fn room(&self, shows: Shows) -> Option<Space> {
        let objects =
            |state: &OstState| Space { total: state.objects_total, free: state.objects_free };
        match shows {
            Shows::Bytes(_) => self.space,
            Shows::Objects => self.usage.state.as_ref().map(objects),
        }
    }
}

fn sum<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<Space> {
    sum_of(rows, Shows::Bytes(true))
}

fn sum_of<'a>(rows: impl Iterator<Item = &'a Row>, shows: Shows) -> Option<Space> {
    let mut sum = Space::default();
    for space in rows.filter_map(|row| row.room(shows)) {
        sum.total += space.total;
        sum.free += space.free;
    }
    Some(sum)
}

fn line(
    out: &mut dyn Write,
    name: &str,
    site: &str,
    space: &Option<Space>,
    size: &dyn Fn(u64) -> String,
    state: &str,
) -> io::Result<()> {
    let dash = || "-".to_owned();
    let (total, used, free, percent) = match space {
        Some(Space { total, free }) => {
            let used = total.saturating_sub(*free);
            let percent = (used * 100).checked_div(*total).map_or_else(dash, |p| format!("{p}%"));
            (size(*total), size(used), size(*free), percent)
        }
        None => (dash(), dash(), dash(), dash()),
    };
    writeln!(out, "{name:<20} {site:<10} {total:>12} {used:>12} {free:>12} {percent:>4}  {state}")
}

fn space_json(map: &FederationMap, rows: &[Row]) -> Value {
    let space = |space: Option<Space>| {
        space.map(
            |s| json!({ "total": s.total, "free": s.free, "used": s.total.saturating_sub(s.free) }),
        )
    };
    let osts: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "ost": row.ost.0,
                "name": format!("{}-{}", map.fs, row.ost.label()),
                "site": row.site,
                "active": row.usage.is_active,
                "state": row.state,
                "heard": row.usage.heard.map(show::seconds),
                "bytes": space(row.space),
                "objects": row.usage.state.as_ref().map(|s| {
                    json!({ "total": s.objects_total, "free": s.objects_free })
                }),
            })
        })
        .collect();
    let pools: Vec<Value> = map
        .pools
        .iter()
        .map(|pool| {
            let members = rows.iter().filter(|row| pool.osts.contains(&row.ost));
            json!({
                "name": pool.name,
                "osts": pool.osts.iter().map(|ost| ost.0).collect::<Vec<_>>(),
                "bytes": space(sum(members)),
            })
        })
        .collect();
    json!({ "fs": map.fs, "osts": osts, "pools": pools, "bytes": space(sum(rows.iter())) })
}
