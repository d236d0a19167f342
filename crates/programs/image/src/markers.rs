//! What a machine says on its serial line, for whoever started it: a line with [`SAYS`] somewhere
//! in it, since the kernel may write before it on the same line.
//!
//! Knows no file and no line: only words.

/// Stands before all that the machine's own program says.
const SAYS: &str = "TIELINE-VM ";

/// What is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// It was given nothing, and has nothing from before.
    Empty,
    /// The file system is there, at this path.
    Mounted(String),
    /// It will not be, and why.
    Failed(String),
    /// The job begins.
    JobBegins,
    /// The job ended, with this code.
    JobEnded(i32),
    /// All that was written is at its servers.
    Unmounted,
}

impl Said {
    /// As it goes over the line.
    pub fn line(&self) -> String {
        match self {
            Self::Empty => format!("{SAYS}empty"),
            Self::Mounted(path) => format!("{SAYS}mounted {}", one_line(path)),
            Self::Failed(why) => format!("{SAYS}failed {}", one_line(why)),
            Self::JobBegins => format!("{SAYS}job begins"),
            Self::JobEnded(code) => format!("{SAYS}job ended {code}"),
            Self::Unmounted => format!("{SAYS}unmounted"),
        }
    }

    /// What a line of the serial log says, if it is said by us.
    pub fn of(line: &str) -> Option<Self> {
        let (_, words) = line.split_once(SAYS)?;
        let words = words.trim_end();
        let (first, rest) = words.split_once(' ').unwrap_or((words, ""));
        match (first, rest) {
            ("empty", "") => Some(Self::Empty),
            ("mounted", path) => Some(Self::Mounted(path.to_owned())),
            ("failed", why) => Some(Self::Failed(why.to_owned())),
            ("job", "begins") => Some(Self::JobBegins),
            ("job", ended) => Some(Self::JobEnded(ended.strip_prefix("ended ")?.parse().ok()?)),
            ("unmounted", "") => Some(Self::Unmounted),
            _ => None,
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_whatever_stands_before_it() {
        for said in [
            Said::Empty,
            Said::Mounted("/extenci".to_owned()),
            Said::Failed("no KDC answers: look".to_owned()),
            Said::JobBegins,
            Said::JobEnded(-1),
            Said::Unmounted,
        ] {
            let line = format!("[    3.141592] random: {}\r", said.line());
            assert_eq!(Said::of(&line), Some(said));
        }
        assert_eq!(Said::Failed("a\nb".to_owned()).line(), "TIELINE-VM failed a b");
    }

    proptest::proptest! {
        #[test]
        fn no_line_is_too_odd(line in ".{0,80}") {
            let _ = Said::of(&line);
            let _ = Said::of(&format!("{SAYS}{line}"));
        }
    }
}
