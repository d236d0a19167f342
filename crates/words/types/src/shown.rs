//! Names and paths as people see them: in messages, in logs, and on terminals.
//!
//! Anyone can make a name that holds the commands of a terminal, or of no encoding at all.

use std::fmt::{self, Write};

/// Bytes as text; control characters, what breaks or reorders lines, and what is no UTF-8, as `\`
/// and three octal digits for each byte.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(self.0.len());
        for chunk in self.0.utf8_chunks() {
            for letter in chunk.valid().chars() {
                match letter.is_control() || is_deceptive(letter) {
                    true => octal(&mut text, letter.encode_utf8(&mut [0; 4]).as_bytes())?,
                    false => text.push(letter),
                }
            }
            octal(&mut text, chunk.invalid())?;
        }
        f.pad(&text)
    }
}

/// Another line to some, or text that is read from its end.
fn is_deceptive(letter: char) -> bool {
    matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn octal(text: &mut String, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(text, "\\{byte:03o}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_as_numbers() {
        let shown = |bytes: &[u8]| Shown(bytes).to_string();
        assert_eq!(shown("a b/é".as_bytes()), "a b/é");
        assert_eq!(shown(b"\x1b[31m\n"), "\\033[31m\\012");
        assert_eq!(shown(b"\xff\xfex"), "\\377\\376x");
        assert_eq!(shown("\u{9b}".as_bytes()), "\\302\\233");
        assert_eq!(shown("a\u{202e}b\u{2028}".as_bytes()), "a\\342\\200\\256b\\342\\200\\250");
        assert_eq!(format!("{:>6}", Shown(b"\x07")), "  \\007");
        let name = crate::Name::new(*b"\xff\x1b").unwrap();
        assert_eq!(name.to_string(), "\\377\\033");
    }
}
