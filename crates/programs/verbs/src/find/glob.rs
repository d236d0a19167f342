//! Patterns of names, as shells have them.

/// Shell patterns: `*`, `?` and `[a-z]`.
pub fn matches(glob: &str, name: &str) -> bool {
    let glob: Vec<char> = glob.chars().collect();
    let name: Vec<char> = name.chars().collect();
    matches_from(&glob, &name)
}

fn matches_from(glob: &[char], name: &[char]) -> bool {
    let Some((&first, rest)) = glob.split_first() else { return name.is_empty() };
    match (first, name.split_first()) {
        ('*', None) => matches_from(rest, name),
        ('*', Some((_, after))) => matches_from(rest, name) || matches_from(glob, after),
        ('?', Some((_, after))) => matches_from(rest, after),
        ('[', Some((&letter, after))) => match rest.iter().skip(1).position(|&c| c == ']') {
            Some(end) => {
                let (set, tail) = rest.split_at(end + 1);
                in_set(set, letter) && matches_from(&tail[1..], after)
            }
            None => letter == '[' && matches_from(rest, after),
        },
        (_, Some((&letter, after))) => letter == first && matches_from(rest, after),
        (_, None) => false,
    }
}

fn in_set(set: &[char], letter: char) -> bool {
    let (is_negated, set) = match set {
        ['!' | '^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut left = set;
    let mut is_in = false;
    while let Some((&from, rest)) = left.split_first() {
        left = match rest {
            ['-', to, after @ ..] => {
                is_in |= (from..=*to).contains(&letter);
                after
            }
            _ => {
                is_in |= from == letter;
                rest
            }
        };
    }
    is_in != is_negated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_a_shell() {
        for (glob, name, fits) in [
            ("*.root", "run7.root", true),
            ("*.root", "run7.root.gz", false),
            ("run?.*", "run7.root", true),
            ("run[0-6]*", "run7.root", false),
            ("run[!0-6]*", "run7.root", true),
            ("*a*b*", "xxaxxbxx", true),
            ("", "", true),
            ("[", "[", true),
        ] {
            assert_eq!(matches(glob, name), fits, "{glob} {name}");
        }
    }
}
