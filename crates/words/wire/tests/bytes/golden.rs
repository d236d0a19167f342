//! Golden files: one per sample, lines of hexadecimal digits.
//!
//! With `TIELINE_BLESS` in the environment the files are written instead of compared.

use crate::samples;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::panic::{RefUnwindSafe, catch_unwind};
use std::path::Path;

/// Bytes per line: a frame's header, or a few fields.
const LINE: usize = 32;

/// A value and its bytes.
pub struct Sample {
    /// The golden file's, without its ending.
    pub name: String,
    pub bytes: Vec<u8>,
    check: Box<Check>,
}

/// Panics unless the bytes decode to the sample.
type Check = dyn Fn(&[u8]) + RefUnwindSafe;

impl Sample {
    pub fn new<T: PartialEq + Debug + RefUnwindSafe + 'static, E: Debug>(
        name: impl Into<String>,
        value: T,
        bytes: Vec<u8>,
        decode: impl Fn(&[u8]) -> Result<T, E> + RefUnwindSafe + 'static,
    ) -> Self {
        let check = move |bytes: &[u8]| assert_eq!(decode(bytes).unwrap(), value);
        Self { name: name.into(), bytes, check: Box::new(check) }
    }
}

#[test]
fn bytes_are_what_they_always_were() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    compare(&folder, &samples::all());
}

/// Compares every sample with its file, both ways, and the files with the samples.
fn compare(folder: &Path, samples: &[Sample]) {
    let is_bless = std::env::var_os("TIELINE_BLESS").is_some();
    let mut names = BTreeSet::new();
    let mut wrong = Vec::new();
    for sample in samples {
        assert!(names.insert(format!("{}.hex", sample.name)), "{} is there twice", sample.name);
        (sample.check)(&sample.bytes);
        let path = folder.join(&sample.name).with_extension("hex");
        let wanted = to_hex(&sample.bytes);
        if is_bless {
            fs::write(&path, wanted).unwrap();
            continue;
        }
        match fs::read_to_string(&path) {
            Ok(golden) if golden == wanted => {}
            // A golden that still decodes is a change that old peers survive; say which it is.
            Ok(golden) => {
                let is_read = catch_unwind(|| (sample.check)(&from_hex(&golden)));
                let verdict = if is_read.is_ok() { "still decodes" } else { "no longer decodes" };
                wrong.push(format!("{} changed; the old {verdict}", sample.name));
            }
            Err(_) => wrong.push(format!("{} has no golden", sample.name)),
        }
    }
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !names.contains(&name) {
            wrong.push(format!("{name} has no sample: what was released once stays readable"));
        }
    }
    let hint = "look at what changed, then run `cargo xtask bless`";
    assert!(wrong.is_empty(), "{hint}:\n{}", wrong.join("\n"));
}

fn to_hex(bytes: &[u8]) -> String {
    let line = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(LINE).map(|bytes| line(bytes) + "\n").collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

#[test]
fn hexadecimal_digits_come_back() {
    let bytes: Vec<u8> = (0..=255).collect();
    assert_eq!(from_hex(&to_hex(&bytes)), bytes);
}
