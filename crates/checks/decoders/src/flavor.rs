//! Rules for flavors, as people write them and as maps carry them.

use tieline_types::{FlavorRule, FlavorRules, Pair};

pub fn feed(bytes: &[u8]) {
    if let Ok((_, rule)) =
        std::str::from_utf8(bytes).map_or(Err(()), |t| FlavorRule::parse(t).map_err(drop))
    {
        let line = format!("fs.{}={}", rule.subject(), rule.flavor.name());
        assert_eq!(FlavorRule::parse(&line), Ok(("fs", rule)));
    }
    let Ok(rules) = minicbor::decode::<FlavorRules>(bytes) else { return };
    for pair in Pair::ALL {
        let _ = rules.flavor(pair, Some([10, 0, 0, 1].into()));
    }
}
