//! How a file stands to tape, in words and as JSON.

use serde_json::{Value, json};
use tieline_base::show;
use tieline_types::{Residency, Shown, Time, WishState};
use tieline_wire::tape::TapeReply;

/// `exists archived, ONLINE_AND_NEARLINE; 7 bytes at osm://…`.
pub fn text(reply: &TapeReply) -> String {
    let mut text = match reply.on_tape {
        None => "not on tape".to_owned(),
        Some(on_tape) => format!("{on_tape}, {}", residency(reply)),
    };
    if let Some(copy) = &reply.copy {
        let uris: Vec<String> =
            copy.uris.iter().map(|uri| Shown(uri.as_bytes()).to_string()).collect();
        text += &format!(
            "; {} bytes in pool {} since {} at {}, adler32 {:08x}",
            copy.size,
            copy.pool,
            Time { nanos: 0, ..copy.at },
            uris.join(" "),
            copy.adler32
        );
    }
    if reply.released > 0 {
        text += &format!("; {} bytes are not on disk", reply.released);
    }
    if let Some(wish) = &reply.wish {
        text += &format!("; {}", wish_text(wish, reply.now_ms));
    }
    text
}

/// What is to be done, and what stands in the way.
pub fn wish_text(wish: &WishState, now_ms: u64) -> String {
    let what = &wish.wish;
    let Some(failure) = &wish.failure else { return format!("to {what}") };
    let detail = Shown(failure.detail.as_bytes());
    if wish.is_over {
        return format!("could not {what}: {detail}");
    }
    let seconds = wish.next_ms.saturating_sub(now_ms).div_ceil(1000);
    match wish.tries {
        0 => format!("to {what}, waiting: {detail}"),
        tries => format!("to {what}, {tries} tries failed: {detail}; again in {seconds} s"),
    }
}

fn residency(reply: &TapeReply) -> Residency {
    match reply.on_tape {
        Some(on_tape) if on_tape.is_nearline() => Residency::Nearline,
        on_tape => Residency::Online.with_tape(on_tape),
    }
}

pub fn json(reply: &TapeReply) -> Value {
    let copy = reply.copy.as_ref();
    let wish = reply.wish.as_ref().map(|wish| {
        json!({
            "wish": wish.wish.to_string(),
            "since": show::seconds(wish.since),
            "tries": wish.tries,
            "error": wish.failure.as_ref().map(|failure| &failure.detail),
            "given_up": wish.is_over,
        })
    });
    json!({
        "state": reply.on_tape.map(|on_tape| on_tape.to_string()),
        "residency": residency(reply).to_string(),
        "uris": copy.map(|copy| &copy.uris),
        "pool": copy.map(|copy| &copy.pool),
        "archived_size": copy.map(|copy| copy.size),
        "adler32": copy.map(|copy| format!("{:08x}", copy.adler32)),
        "digest": copy.map(|copy| copy.digest.to_string()),
        "archived_at": copy.map(|copy| show::seconds(copy.at)),
        "bytes_released": reply.released,
        "wish": wish,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::tape::WishFailure;
    use tieline_types::{ErrorKind, OnTape, TapeWish};

    #[test]
    fn what_stands_in_the_way_is_said() {
        let at = Time { seconds: 100, nanos: 0 };
        let detail = "put: exit status 41".to_owned();
        let failure = Some(WishFailure { kind: ErrorKind::NoSpace, detail, at });
        let mut wish = WishState {
            tries: 2,
            next_ms: 160_000,
            failure,
            ..WishState::new(TapeWish::Archive, at)
        };
        let reply = |wish: &WishState, on_tape| TapeReply {
            on_tape,
            copy: None,
            released: 0,
            wish: Some(wish.clone()),
            now_ms: 100_500,
        };
        let told = text(&reply(&wish, None));
        let expected =
            "not on tape; to archive, 2 tries failed: put: exit status 41; again in 60 s";
        assert_eq!(told, expected);
        wish.is_over = true;
        let told = text(&reply(&wish, Some(OnTape::Dirty)));
        assert_eq!(told, "exists dirty, ONLINE; could not archive: put: exit status 41");
        assert_eq!(json(&reply(&wish, None))["wish"]["given_up"], true);
    }
}
