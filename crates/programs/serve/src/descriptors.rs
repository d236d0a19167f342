//! How many connections a server may have open.
//!
//! It takes all the files that its hard limit allows. Who has not said who he is gets an eighth of
//! that at most, the objects of a data server a quarter ([`tieline_blob`]): a crowd that says
//! nothing leaves the rest to those who work.

use rustix::process::{Resource, getrlimit};
use tieline_net::ServerSettings;

pub fn settings() -> ServerSettings {
    settings_for(getrlimit(Resource::Nofile).current)
}

fn settings_for(limit: Option<u64>) -> ServerSettings {
    let settings = ServerSettings::default();
    let eighth = limit.map_or(usize::MAX, |limit| usize::try_from(limit / 8).unwrap_or(usize::MAX));
    ServerSettings { unknown_max: settings.unknown_max.min(eighth.max(1)), ..settings }
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
}
