//! `tieline quota`, `setquota` and `repquota`, with the words of `lfs`.
//!
//! Limits hold over all MDTs, and what is shown is what all use (`whole`), whatever path is given.
//! Users and groups are identities of the file system (`names`).
//! What is promised to clients that are writing counts as used, and is shown beside it.

pub mod names;
mod shown;
pub mod whole;

pub use shown::rows;

use crate::shell::{self, Shell};
use anyhow::{Context, bail, ensure};
use names::Names;
use shown::{Shown, print};
use std::ffi::OsString;
use std::sync::Arc;
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_types::quota::{Payer, PayerKind};
use tieline_types::{ByteSize, MdtIndex, PoolName, Span};
use tieline_wire::quotas::{ReclaimShares, SetQuota};

/// Whose.
#[derive(clap::Args, Debug)]
struct Whom {
    /// A user, by name or number of the identity (not of this machine's user)
    #[arg(short = 'u', long, value_name = "USER", num_args = 0..=1, default_missing_value = "")]
    user: Option<String>,
    /// A group, by name or number of the identity
    #[arg(short = 'g', long, value_name = "GROUP", num_args = 0..=1, default_missing_value = "")]
    group: Option<String>,
    /// A project, by number (see `tieline project`)
    #[arg(short = 'p', long, value_name = "ID", num_args = 0..=1, default_missing_value = "")]
    project: Option<String>,
    /// The default of users: for all who have no limits of their own
    #[arg(short = 'U', long)]
    default_usr: bool,
    /// The default of groups
    #[arg(short = 'G', long)]
    default_grp: bool,
    /// The default of projects
    #[arg(short = 'P', long)]
    default_prj: bool,
    /// Only what lies in this pool
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
}

impl Whom {
    /// The kind whose default was named.
    fn default_kind(&self) -> Result<Option<PayerKind>, Usage> {
        let named = [
            (PayerKind::User, self.default_usr),
            (PayerKind::Group, self.default_grp),
            (PayerKind::Project, self.default_prj),
        ];
        let mut named = named.into_iter().filter(|(_, is_named)| *is_named);
        let found = named.next().map(|(kind, _)| kind);
        if named.next().is_some() || (found.is_some() && self.kind()?.is_some()) {
            return Err(Usage("one of -U, -G, -P, -u, -g and -p".into()));
        }
        Ok(found)
    }

    /// The kind that was named, and who of it if somebody was.
    fn kind(&self) -> Result<Option<(PayerKind, Option<String>)>, Usage> {
        let named = [
            (PayerKind::User, &self.user),
            (PayerKind::Group, &self.group),
            (PayerKind::Project, &self.project),
        ];
        let mut found = None;
        for (kind, text) in named {
            let Some(text) = text else { continue };
            if found.is_some() {
                return Err(Usage("one of -u, -g and -p".into()));
            }
            found = Some((kind, Some(text.clone()).filter(|text| !text.is_empty())));
        }
        Ok(found)
    }

    /// What stood behind -u, -g or -p and is not whose quota is meant: they may stand alone.
    fn give_back(&mut self) -> Option<OsString> {
        let all = [&mut self.user, &mut self.group, &mut self.project];
        let taken = all.into_iter().flatten().find(|text| !text.is_empty())?;
        Some(std::mem::take(taken).into())
    }

    fn pool(&self) -> Result<Option<PoolName>, Usage> {
        self.pool.as_deref().map(super::setstripe::pool).transpose().map(Option::flatten)
    }
}

#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    #[command(flatten)]
    whom: Whom,
    /// For how long soft limits may be passed: `-t -u` of users
    #[arg(short = 't', long)]
    grace: bool,
    /// What each MDT has of it, too
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Only who is over a limit
    #[arg(short = 'q', long)]
    quiet: bool,
    /// Sizes in units people read
    #[arg(short = 'h')]
    human: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// One JSON array
    #[arg(long)]
    json: bool,
    /// Path below a mount, or tieline://HOST[:PORT]/FS/path
    path: Option<OsString>,
}

fn no_path() -> Usage {
    Usage("where: a path below a mount, or tieline://HOST[:PORT]/FS/path".into())
}

/// A pool that is not there has neither limits nor use to tell.
fn check_pool(shell: &Shell, pool: Option<&PoolName>) -> anyhow::Result<()> {
    let Some(pool) = pool else { return Ok(()) };
    let map = shell.files.map();
    let is_there = map.pools.iter().any(|known| known.name == *pool);
    ensure!(is_there, "there is no pool {pool}: `tieline pool list` shows which are");
    Ok(())
}

/// `tieline quota`: without -u, -g and -p of the caller, their groups, and the path's project.
pub fn run(mut args: Args) -> anyhow::Result<()> {
    let path = args.path.take().or_else(|| args.whom.give_back()).ok_or_else(no_path)?;
    let (whom, pool) = (args.whom.kind()?, args.whom.pool()?);
    let shown = Shown {
        is_human: args.human,
        is_json: args.json,
        has_parts: args.verbose,
        is_over_only: args.quiet,
        is_grace: args.grace,
    };
    if let Some(kind) = args.whom.default_kind()? {
        return at(&path, |shell, _| async move {
            check_pool(&shell, pool.as_ref())?;
            let payer = Payer { kind, id: 0, pool };
            let quotas = vec![whole::of_default(&shell, payer).await?];
            print(&quotas, &Names::of(&shell).await, &shown)
        });
    }
    at(&path, |shell, project| async move {
        check_pool(&shell, pool.as_ref())?;
        let (names, caller) = (Names::of(&shell).await, names::own(&shell).await);
        let payers: Vec<(PayerKind, u32)> = match whom {
            Some((kind, Some(text))) => vec![(kind, names.number(kind, &text)?)],
            Some((PayerKind::User, None)) => vec![(PayerKind::User, caller.uid.0)],
            Some((PayerKind::Group, None)) => vec![(PayerKind::Group, caller.gid.0)],
            Some((PayerKind::Project, None)) => vec![(PayerKind::Project, project)],
            None => {
                let groups = [caller.gid].into_iter().chain(caller.groups.iter().copied());
                let mut groups: Vec<u32> = groups.map(|gid| gid.0).collect();
                groups.sort_unstable();
                groups.dedup();
                let groups = groups.into_iter().map(|gid| (PayerKind::Group, gid));
                let tree = (project != 0).then_some((PayerKind::Project, project));
                [(PayerKind::User, caller.uid.0)].into_iter().chain(groups).chain(tree).collect()
            }
        };
        let payer = |(kind, id)| Payer { kind, id, pool: pool.clone() };
        let payers: Vec<Payer> = payers.into_iter().map(payer).collect();
        let quotas = whole::of(&shell, payers).await?;
        print(&quotas, &names, &shown)
    })
}

#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct ReportArgs {
    /// Users (if nothing else is said)
    #[arg(short = 'u', long)]
    user: bool,
    /// Groups
    #[arg(short = 'g', long)]
    group: bool,
    /// Projects
    #[arg(short = 'p', long)]
    project: bool,
    /// All three
    #[arg(short = 'a', long)]
    all: bool,
    /// What each MDT has of it, too
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Only what lies in this pool
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Sizes in units people read
    #[arg(short = 'h')]
    human: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// One JSON array
    #[arg(long)]
    json: bool,
    /// Path below a mount, or tieline://HOST[:PORT]/FS/path
    path: OsString,
}

/// `tieline repquota`: everybody who uses anything or has limits.
pub fn report(args: ReportArgs) -> anyhow::Result<()> {
    let wanted = [
        (PayerKind::User, args.user || args.all || !(args.group || args.project)),
        (PayerKind::Group, args.group || args.all),
        (PayerKind::Project, args.project || args.all),
    ];
    let pool = args.pool.as_deref().map(super::setstripe::pool).transpose()?.flatten();
    let shown = Shown {
        is_human: args.human,
        is_json: args.json,
        has_parts: args.verbose,
        ..Shown::default()
    };
    at(&args.path, |shell, _| async move {
        check_pool(&shell, pool.as_ref())?;
        let kinds = wanted.into_iter().filter(|(_, is_wanted)| *is_wanted);
        let mut quotas = whole::of_everybody(&shell, kinds.map(|(kind, _)| kind).collect()).await?;
        quotas.retain(|whole| whole.quota.payer.pool == pool);
        print(&quotas, &Names::of(&shell).await, &shown)
    })
}

#[derive(clap::Args, Debug)]
pub struct SetArgs {
    #[command(flatten)]
    whom: Whom,
    /// Bytes that may be passed for a while: 10G; a plain number is KiB, 0 no limit. With -t a time
    #[arg(short = 'b', long, visible_alias = "block-grace", value_name = "SIZE")]
    block_softlimit: Option<String>,
    /// Bytes that are never passed
    #[arg(short = 'B', long, value_name = "SIZE")]
    block_hardlimit: Option<String>,
    /// Files that may be passed for a while. With -t a time
    #[arg(short = 'i', long, visible_alias = "inode-grace", value_name = "COUNT")]
    inode_softlimit: Option<String>,
    /// Files that are never passed
    #[arg(short = 'I', long, value_name = "COUNT")]
    inode_hardlimit: Option<String>,
    /// Take back what a lost MDT held of all limits: its index. Only if it will never come back
    #[arg(long, value_name = "MDT", conflicts_with_all = [
        "user", "group", "project", "default_usr", "default_grp", "default_prj", "default", "pool",
        "grace", "block_softlimit", "block_hardlimit",
        "inode_softlimit", "inode_hardlimit",
    ])]
    reclaim: Option<u16>,
    /// Set for how long soft limits may be passed: `-t -u -b 7d -i 1h`
    #[arg(short = 't', long)]
    grace: bool,
    /// Back under the default: no limits of their own any more
    #[arg(short = 'D', long = "default", conflicts_with_all = [
        "default_usr", "default_grp", "default_prj", "grace", "block_softlimit", "block_hardlimit",
        "inode_softlimit", "inode_hardlimit",
    ])]
    default: bool,
    /// Path below a mount, or tieline://HOST[:PORT]/FS/path; before it, as for setquota(8), the
    /// four limits BLOCK-SOFT BLOCK-HARD INODE-SOFT INODE-HARD (with -t the two times)
    #[arg(num_args = 1..=5, value_name = "[LIMITS] PATH")]
    words: Vec<OsString>,
    #[arg(skip)]
    path: OsString,
}

/// `tieline setquota`.
pub fn set(mut args: SetArgs) -> anyhow::Result<()> {
    args.take_words()?;
    if let Some(mdt) = args.reclaim {
        return reclaim(&args.path, MdtIndex(mdt));
    }
    let (mut message, whose) = args.message()?;
    at(&args.path, |shell, _| async move {
        if let Some(text) = whose {
            message.payer.id = Names::of(&shell).await.number(message.payer.kind, &text)?;
            if message.payer.id == 0 && message.is_default.is_some() {
                bail!("id 0 has no limits, and is under no default");
            }
        }
        check_pool(&shell, message.payer.pool.as_ref())?;
        let reply = shell.volume.ask_of_mdt(&shell.caller, whole::home(), message).await?;
        for mdt in reply.absent.into_iter().flatten() {
            let shown = whole::name_of(&shell, mdt);
            eprintln!("{shown} does not answer: the new limits hold there once it does");
        }
        Ok(())
    })
}

fn reclaim(path: &OsString, mdt: MdtIndex) -> anyhow::Result<()> {
    at(path, |shell, _| async move {
        let message = ReclaimShares { mdt };
        let done = shell.volume.ask_of_mdt(&shell.caller, whole::home(), message).await?;
        println!("{} held limits of {} payers, which others may use now", mdt.label(), done.payers);
        Ok(())
    })
}

impl SetArgs {
    /// Limits that stand before the path become those of options.
    fn take_words(&mut self) -> Result<(), Usage> {
        if self.grace {
            let first = self.whom.give_back();
            self.words.splice(..0, first);
        }
        self.path = self.words.pop().ok_or_else(no_path)?;
        let count = if self.grace { 2 } else { 4 };
        if self.words.is_empty() {
            return Ok(());
        }
        let options = [
            &self.block_softlimit,
            &self.block_hardlimit,
            &self.inode_softlimit,
            &self.inode_hardlimit,
        ];
        let has_options =
            options.into_iter().any(Option::is_some) || self.default || self.reclaim.is_some();
        if has_options || self.words.len() != count {
            let what = match self.grace {
                true => "the times BLOCK-GRACE INODE-GRACE",
                false => "the limits BLOCK-SOFT BLOCK-HARD INODE-SOFT INODE-HARD",
            };
            return Err(Usage(format!("before the path: {what}, and no options for them")));
        }
        let words = self.words.drain(..).map(|word| word.to_string_lossy().into_owned());
        let mut words = words.collect::<Vec<_>>().into_iter();
        self.block_softlimit = words.next();
        self.block_hardlimit = if self.grace { None } else { words.next() };
        self.inode_softlimit = words.next();
        self.inode_hardlimit = words.next();
        Ok(())
    }

    /// What is wished, and for whom of that kind.
    fn message(&self) -> Result<(SetQuota, Option<String>), Usage> {
        let default_kind = self.whom.default_kind()?;
        let named = default_kind.map(|kind| (kind, None)).or(self.whom.kind()?);
        let Some((kind, whose)) = named else {
            return Err(Usage("whose quota: -u, -g or -p, or -U, -G or -P".into()));
        };
        let pool = self.whom.pool()?;
        let mut message = SetQuota {
            payer: Payer { kind, id: 0, pool },
            bytes_soft: None,
            bytes_hard: None,
            inodes_soft: None,
            inodes_hard: None,
            bytes_grace: None,
            inodes_grace: None,
            is_default: (self.default || default_kind.is_some()).then_some(true),
        };
        let (soft, files) = (self.block_softlimit.as_deref(), self.inode_softlimit.as_deref());
        if self.grace {
            let has_hard = self.block_hardlimit.is_some() || self.inode_hardlimit.is_some();
            if has_hard || whose.is_some() || default_kind.is_some() {
                return Err(Usage("-t sets -b and -i for all users, groups or projects".into()));
            }
            message.bytes_grace = soft.map(|text| seconds("-b", text)).transpose()?;
            message.inodes_grace = files.map(|text| seconds("-i", text)).transpose()?;
            return Ok((message, None));
        }
        if whose.is_none() && default_kind.is_none() {
            return Err(Usage(format!("which {}?", kind.name())));
        }
        message.bytes_soft = soft.map(|text| size("-b", text)).transpose()?;
        let hard = self.block_hardlimit.as_deref();
        message.bytes_hard = hard.map(|text| size("-B", text)).transpose()?;
        message.inodes_soft = files.map(|text| count("-i", text)).transpose()?;
        let hard = self.inode_hardlimit.as_deref();
        message.inodes_hard = hard.map(|text| count("-I", text)).transpose()?;
        let limits =
            [message.bytes_soft, message.bytes_hard, message.inodes_soft, message.inodes_hard];
        if limits.iter().all(Option::is_none) && message.is_default.is_none() {
            let wanted = "which limit: -b, -B, -i or -I (0 takes it away), or --default";
            return Err(Usage(wanted.into()));
        }
        Ok((message, whose))
    }
}

/// No limit, as people write it who do not think of 0.
const UNLIMITED: [&str; 2] = ["unlimited", "none"];

/// As `lfs setquota` reads them: a plain number is KiB.
fn size(option: &str, text: &str) -> Result<u64, Usage> {
    if UNLIMITED.contains(&text) {
        return Ok(0);
    }
    if let Ok(number) = text.parse::<u64>() {
        return number.checked_mul(1024).ok_or_else(|| Usage(format!("{option} {text}: too much")));
    }
    let size: ByteSize = text.parse().map_err(|e| Usage(format!("{option}: {e}")))?;
    Ok(size.0)
}

/// `1000`, or `10k` for ten thousand.
fn count(option: &str, text: &str) -> Result<u64, Usage> {
    if UNLIMITED.contains(&text) {
        return Ok(0);
    }
    let wrong = || Usage(format!("{option} {text}: a number of files, such as 1000, 10k or 2M"));
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok().and_then(|one| one.checked_mul(factor)).ok_or_else(wrong)
}

/// `7d`, `1h`, `30 s`, `1w`, or seconds; several may follow each other as in `1w4d`.
fn seconds(option: &str, text: &str) -> Result<u64, Usage> {
    let wrong = || Usage(format!("{option} {text}: a time, such as 7d, 1w or 12h"));
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    if let Ok(Span(span)) = text.parse() {
        return Ok(span.as_secs());
    }
    let (mut total, mut number) = (0u64, String::new());
    for character in text.chars() {
        let factor = match character {
            '0'..='9' => {
                number.push(character);
                continue;
            }
            'w' => 7 * 86_400,
            'd' => 86_400,
            'h' => 3_600,
            'm' => 60,
            's' => 1,
            _ => return Err(wrong()),
        };
        let count: u64 = std::mem::take(&mut number).parse().map_err(|_| wrong())?;
        total =
            count.checked_mul(factor).and_then(|one| total.checked_add(one)).ok_or_else(wrong)?;
    }
    if number.is_empty() && total > 0 { Ok(total) } else { Err(wrong()) }
}

/// Runs a command where a path lies, with the path's project.
fn at<F: Future<Output = anyhow::Result<()>>>(
    path: &OsString,
    command: impl FnOnce(Arc<Shell>, u32) -> F,
) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find(path)?;
    let (shown, inner) = (location.text.clone(), location.path.clone());
    shell::run(&location, |shell| async move {
        let attributes = shell.resolve(&inner, true).await?.attributes;
        let project = attributes.project.unwrap_or(0);
        command(shell, project).await.with_context(|| format!("quota at {shown}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_lfs_reads_them() {
        assert_eq!(size("-b", "100").unwrap(), 100 << 10);
        assert_eq!(size("-b", "10M").unwrap(), 10 << 20);
        assert_eq!(size("-b", "0").unwrap(), 0);
        assert_eq!((size("-B", "unlimited").unwrap(), count("-I", "none").unwrap()), (0, 0));
        assert!(size("-b", "much").is_err());
        assert_eq!((count("-i", "20").unwrap(), count("-i", "2k").unwrap()), (20, 2000));
        assert!(count("-i", "k").is_err() && count("-i", "").is_err());
        assert_eq!(seconds("-b", "1w4d").unwrap(), 11 * 86_400);
        assert_eq!((seconds("-b", "90").unwrap(), seconds("-b", "2h").unwrap()), (90, 7200));
        assert!(seconds("-b", "soon").is_err() && seconds("-b", "1w4").is_err());
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        set: SetArgs,
    }

    fn set_of(words: &str) -> Result<SetQuota, Usage> {
        use clap::Parser as _;
        let words = ["setquota"].into_iter().chain(words.split(' '));
        let mut args = Line::try_parse_from(words).map_err(|e| Usage(e.to_string()))?.set;
        args.take_words()?;
        assert_eq!(args.path, "/extenci");
        Ok(args.message()?.0)
    }

    #[test]
    fn limits_may_stand_before_the_path() {
        let set = set_of("-u ann 9G 10G 900 unlimited /extenci").unwrap();
        assert_eq!((set.bytes_soft, set.bytes_hard), (Some(9 << 30), Some(10 << 30)));
        assert_eq!((set.inodes_soft, set.inodes_hard), (Some(900), Some(0)));
        let set = set_of("-t -g 7d 1h /extenci").unwrap();
        assert_eq!((set.bytes_grace, set.inodes_grace), (Some(7 * 86_400), Some(3600)));
        assert_eq!(set_of("-u ann -B 5M /extenci").unwrap().bytes_hard, Some(5 << 20));
        assert!(set_of("-u ann 9G 10G /extenci").is_err());
        assert!(set_of("-u ann -B 5M 1 2 3 4 /extenci").is_err());
    }
}
