//! Administrators' messages as they would say them on a command line: for records and refusals.

use crate::federation::MapEdit;
use crate::identity::{IdentityEdit, NewMapping};
use crate::quotas::SetQuota;
use std::fmt;
use std::time::Duration;
use tieline_types::{ByteSize, IdentityName, MachineTrust, OstIndex, Span};

fn labels(osts: &[OstIndex]) -> String {
    osts.iter().map(|ost| ost.label()).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for MapEdit {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PoolNew(pool) => write!(f, "pool new {pool}"),
            Self::PoolDestroy(pool) => write!(f, "pool destroy {pool}"),
            Self::PoolAdd { pool, osts } => write!(f, "pool add {pool} {}", labels(osts)),
            Self::PoolRemove { pool, osts } => write!(f, "pool remove {pool} {}", labels(osts)),
            Self::PoolExpose { pool, directory, ost, is_trusted } => {
                write!(f, "pool set {pool} --expose {directory}")?;
                ost.iter().try_for_each(|ost| write!(f, " --ost {}", ost.label()))?;
                if *is_trusted { f.write_str(" --at-rest trusted") } else { Ok(()) }
            }
            Self::PoolHide(pool) => write!(f, "pool set {pool} --no-expose"),
            Self::OstActivate(ost) => write!(f, "ost activate {}", ost.label()),
            Self::OstDeactivate(ost) => write!(f, "ost deactivate {}", ost.label()),
            Self::FlavorSet(rule) => {
                write!(f, "flavor set {}={}", rule.subject(), rule.flavor.name())
            }
            Self::FlavorUnset(rule) => write!(f, "flavor unset {}", rule.subject()),
            Self::MachineSet { principal, trust } => {
                let trust = trust.unwrap_or(MachineTrust::Squash);
                write!(f, "id machine {principal} {}", trust.name())
            }
            Self::StrangersSet(strangers) => write!(f, "id strangers {}", strangers.name()),
            Self::DoorSet(door) => {
                write!(f, "door add {}", door.principal)?;
                door.services.iter().try_for_each(|one| write!(f, " --tickets-for {one}"))?;
                door.vouches_for.iter().try_for_each(|one| write!(f, " --vouch-for {one}"))?;
                let allowed = door.scope.as_ref().map(|scope| scope.allowed());
                if allowed.is_some_and(<[_]>::is_empty) {
                    write!(f, " for nothing")?;
                }
                allowed.into_iter().flatten().try_for_each(|one| write!(f, " --scope {one}"))?;
                write!(f, " --life {}s", door.seconds())
            }
            Self::DoorRemove(principal) => write!(f, "door remove {principal}"),
            Self::IssuerSet(issuer) => {
                write!(f, "issuer add {}", issuer.url)?;
                issuer.audiences.iter().try_for_each(|one| write!(f, " --audience {one}"))?;
                if !issuer.base.is_empty() {
                    write!(f, " --base ")?;
                    issuer.base.iter().try_for_each(|name| write!(f, "/{name}"))?;
                }
                issuer.users.iter().try_for_each(|one| write!(f, " --user {one}"))?;
                write!(f, " with {} keys", issuer.keys.len())
            }
            Self::KeyRotate => f.write_str("map rotate-key"),
            Self::IssuerRemove(url) => write!(f, "issuer remove {url}"),
            Self::SiteInvite { site, .. } => write!(f, "site invite {site}"),
            Self::SiteUninvite(site) => write!(f, "site uninvite {site}"),
            Self::SiteJoin(join) => write!(f, "join at {}", join.addresses.join(", ")),
            Self::RepositoryAdd(add) => {
                let sources = add.sources.join(" ");
                write!(f, "repo add {} {sources} at {}", add.name, add.junction)
            }
            Self::RepositoryTrust(add) => {
                let sources = add.sources.join(" ");
                write!(f, "repo add {} {sources} at {} by its keys", add.name, add.junction)
            }
            Self::PoolHsm { pool, hsm: Some(hsm) } => {
                write!(f, "pool set {pool} --hsm {}", hsm.script)
            }
            Self::PoolHsm { pool, hsm: None } => write!(f, "pool set {pool} --no-hsm"),
            Self::RepositoryRemove(name) => write!(f, "repo remove {name}"),
        }
    }
}

impl fmt::Display for IdentityEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(new) => {
                write!(f, "{}", new.kind.name())?;
                if let Some(number) = new.number {
                    write!(f, " {number}")?;
                }
                write!(f, " {}", new.name)?;
                let groups = new.groups.iter().flatten().map(IdentityName::to_string);
                let groups = groups.collect::<Vec<_>>().join(",");
                if groups.is_empty() { Ok(()) } else { write!(f, " {groups}") }
            }
            Self::Remove { kind, name } => write!(f, "remove {} {name}", kind.name()),
            Self::Map { principal, to: NewMapping::Named(to) } => {
                write!(f, "map {principal} -> {to}")
            }
            Self::Map { principal, to: NewMapping::Nobody } => {
                write!(f, "map {principal} -> nobody")
            }
            Self::Unmap(principal) => write!(f, "unmap {principal}"),
            Self::Role { user, role, is_given: true } => write!(f, "role {user} {role}"),
            Self::Role { user, role, is_given: false } => write!(f, "role {user} --take {role}"),
        }
    }
}

impl fmt::Display for SetQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.payer.kind.name();
        match (self.is_default, self.payer.id) {
            (Some(true), 0) => write!(f, "setquota for {kind}s without limits of their own")?,
            (Some(true), _) => return write!(f, "setquota {} --default", self.payer),
            (_, 0) => write!(f, "setquota -t for {kind}s")?,
            _ => write!(f, "setquota {}", self.payer)?,
        }
        let sizes = [("-b", self.bytes_soft), ("-B", self.bytes_hard)];
        for (option, size) in sizes.into_iter().filter_map(|(name, size)| Some((name, size?))) {
            write!(f, " {option} {}", ByteSize(size))?;
        }
        let counts = [("-i", self.inodes_soft), ("-I", self.inodes_hard)];
        for (option, count) in counts.into_iter().filter_map(|(name, count)| Some((name, count?))) {
            write!(f, " {option} {count}")?;
        }
        let times = [("-b", self.bytes_grace), ("-i", self.inodes_grace)];
        for (option, seconds) in times.into_iter().filter_map(|(name, time)| Some((name, time?))) {
            write!(f, " {option} {}", Span(Duration::from_secs(seconds)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::quota::{Payer, PayerKind};
    use tieline_types::{IdentityKind, Role};

    #[test]
    fn messages_are_said_as_on_a_command_line() {
        let osts = vec![OstIndex(1), OstIndex(2)];
        let add = MapEdit::PoolAdd { pool: "uf".parse().unwrap(), osts };
        assert_eq!(add.to_string(), "pool add uf OST0001 OST0002");
        let (site, until_ms) = ("cern".parse().unwrap(), 5);
        let invite = MapEdit::SiteInvite { site, digest: [7; 32], until_ms };
        assert_eq!(invite.to_string(), "site invite cern");
        let (kind, name) = (IdentityKind::Group, "cms".parse().unwrap());
        assert_eq!(IdentityEdit::Remove { kind, name }.to_string(), "remove group cms");
        let user = "ann".parse().unwrap();
        let taken = IdentityEdit::Role { user, role: Role::FsAdmin, is_given: false };
        assert_eq!(taken.to_string(), "role ann --take fs-admin");
        let mut quota = SetQuota {
            payer: Payer { kind: PayerKind::User, id: 7, pool: None },
            bytes_soft: None,
            bytes_hard: Some(10 << 30),
            inodes_soft: Some(5),
            inodes_hard: None,
            bytes_grace: None,
            inodes_grace: None,
            is_default: None,
        };
        assert_eq!(quota.to_string(), "setquota user 7 -B 10 GiB -i 5");
        quota.is_default = Some(true);
        assert_eq!(quota.to_string(), "setquota user 7 --default");
    }
}
