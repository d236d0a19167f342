//! What a virtual client is given about itself, what one says on its console, a realm's krb5.conf,
//! and QEMU's answers. The first byte says which.

use tieline_image::krb5conf;
use tieline_image::machine::Machine;
use tieline_image::markers::Said;

pub fn feed(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => given(bytes),
        1 => said(&String::from_utf8_lossy(bytes)),
        2 => {
            let text = String::from_utf8_lossy(bytes);
            let kept = krb5conf::portable(&text);
            assert_eq!(krb5conf::portable(&kept), kept);
        }
        _ => drop(tieline_image::answer(&mut &bytes[..])),
    }
}

fn given(bytes: &[u8]) {
    let Ok(machine) = Machine::parse(bytes) else { return };
    let text = machine.text().expect("it was text");
    assert_eq!(Machine::parse(text.as_bytes()), Ok(machine));
}

fn said(line: &str) {
    let Some(said) = Said::of(line) else { return };
    let again = Said::of(&said.line());
    // White space is one line's.
    assert!(again.is_some_and(|again| again.line() == said.line()));
}
