//! How many connections a server may have open.
//!
//! It takes all the files that its hard limit allows. Who has not said who he is gets an eighth of
//! that at most, the objects of a data server a quarter ([`tieline_blob`]), who is known a half: a
//! crowd that says nothing leaves the rest to those who work.

use rustix::process::{Resource, getrlimit};
use tieline_net::ServerSettings;

pub fn settings() -> ServerSettings {
    settings_for(getrlimit(Resource::Nofile).current)
}

fn settings_for(limit: Option<u64>) -> ServerSettings {
    let settings = ServerSettings::default();
    let part = |of: u64| {
        let most = limit.map_or(u64::MAX, |limit| (limit / of).max(1));
        usize::try_from(most).unwrap_or(usize::MAX)
    };
    let connections_max = settings.connections_max.min(part(2));
    ServerSettings { unknown_max: settings.unknown_max.min(part(8)), connections_max, ..settings }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_known_never_has_more_than_an_eighth() {
        let unknown = |limit| settings_for(limit).unknown_max;
        assert_eq!([unknown(None), unknown(Some(65_536)), unknown(Some(1024))], [512, 512, 128]);
        assert_eq!(unknown(Some(4)), 1);
    }

    #[test]
    fn connections_leave_half_of_the_files() {
        let known = |limit| settings_for(limit).connections_max;
        let limits = [None, Some(524_288), Some(65_536), Some(4096), Some(1)];
        assert_eq!(limits.map(known), [16_384, 16_384, 16_384, 2048, 1]);
    }
}
