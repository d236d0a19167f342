//! Requests of stock clients, limits, and inventions.

use super::*;
use proptest::prelude::*;

fn head(code: u16, body: [u8; 16]) -> Head {
    Head { stream: [0, 1], code, body, length: 0 }
}

fn read(code: u16, body: [u8; 16], payload: &[u8]) -> Result<Request, Refusal> {
    Request::read(&head(code, body), Bytes::copy_from_slice(payload))
}

fn path(text: &str) -> Path {
    let (bytes, cgi) = text.split_once('?').unwrap_or((text, ""));
    Path {
        bytes: Bytes::copy_from_slice(bytes.as_bytes()),
        cgi: Bytes::copy_from_slice(cgi.as_bytes()),
    }
}

#[test]
fn what_stock_clients_send_is_understood() {
    let mut body = [0; 16];
    body[3] = 0x50;
    body[2] = 0x04;
    let opened = read(code::OPEN, body, b"/data/f?tried=&x=y").unwrap();
    assert_eq!(opened, Request::Open { path: path("/data/f?tried=&x=y"), wants_stat: true });
    // `xrdcp` to us: update and delete.
    body[3] = 0x62;
    let upload = read(code::OPEN, body, b"/data/f?oss.asize=5").unwrap();
    assert_eq!(upload, Request::Change("opening a file to be written"));
    let mut body = [0; 16];
    body[1] = 3;
    let asked = read(code::QUERY, body, b"/f?cks.type=adler32\0").unwrap();
    let algorithm = Some("adler32".to_owned());
    let of = Named::Path(path("/f?cks.type=adler32"));
    assert_eq!(asked, Request::Checksum { of, algorithm });
    body[1] = 7;
    let config = read(code::QUERY, body, b"readv_iov_max\nreadv_ior_max\0").unwrap();
    let names = ["readv_iov_max", "readv_ior_max"].map(str::to_owned);
    assert_eq!(config, Request::Config(names.to_vec()));
    let located = read(code::LOCATE, [0; 16], b"*/data").unwrap();
    assert_eq!(located, Request::Locate { path: path("/data") });
    let mut body = [0; 16];
    body[15] = 7;
    assert_eq!(
        read(code::STAT, body, b"").unwrap(),
        Request::Stat { of: Named::Handle(7), is_space: false }
    );
}

#[test]
fn ranges_are_those_that_files_have() {
    let mut body = [0; 16];
    body[4..12].copy_from_slice(&(-1_i64).to_be_bytes());
    assert_eq!(read(code::READ, body, b"").unwrap_err().code, Code::ArgInvalid);
    body[4..12].copy_from_slice(&5_i64.to_be_bytes());
    body[12..].copy_from_slice(&(-1_i32).to_be_bytes());
    assert_eq!(read(code::PGREAD, body, b"").unwrap_err().code, Code::ArgInvalid);
    body[12..].copy_from_slice(&7_i32.to_be_bytes());
    let asked = read(code::PGREAD, body, &[0, 0]).unwrap();
    assert_eq!(asked, Request::ReadPages { handle: 0, range: 5..12 });
}

#[test]
fn limits_of_many_ranges_are_inclusive() {
    let element = |length: u32| {
        let mut bytes = vec![0, 0, 0, 3];
        bytes.extend(length.to_be_bytes());
        bytes.extend(9_i64.to_be_bytes());
        bytes
    };
    let many = |count| element(5).repeat(count);
    let read = |payload: &[u8]| read(code::READV, [0; 16], payload);
    assert!(matches!(read(&many(RANGES_MAX)), Ok(Request::ReadMany(all)) if all.len() == 1024));
    assert_eq!(read(&many(RANGES_MAX + 1)).unwrap_err().code, Code::ArgTooLong);
    assert!(read(&element(RANGE_BYTES_MAX)).is_ok());
    assert_eq!(read(&element(RANGE_BYTES_MAX + 1)).unwrap_err().code, Code::NoMemory);
    assert_eq!(read(&element(5)[..15]).unwrap_err().code, Code::ArgInvalid);
    assert_eq!(read(b"").unwrap_err().code, Code::ArgInvalid);
}

#[test]
fn a_path_is_absolute_and_not_endless() {
    let long = format!("/{}", "a".repeat(PATH_MAX));
    for (wrong, code) in
        [("", Code::ArgMissing), ("a/b", Code::ArgInvalid), (&*long, Code::ArgTooLong)]
    {
        assert_eq!(read(code::RM, [0; 16], wrong.as_bytes()), Ok(Request::Change("rm")));
        assert_eq!(read(code::DIRLIST, [0; 16], wrong.as_bytes()).unwrap_err().code, code);
    }
}

proptest! {
    #[test]
    fn inventions_are_read_or_refused(
        code in 2990_u16..3040, body: [u8; 16], payload: Vec<u8>,
    ) {
        let _ = read(code, body, &payload);
    }

    #[test]
    fn what_is_read_keeps_to_the_limits(body: [u8; 16], payload: Vec<u8>) {
        if let Ok(Request::ReadMany(all)) = read(code::READV, body, &payload) {
            prop_assert!(all.len() <= RANGES_MAX);
            prop_assert!(all.iter().all(|one| one.length <= RANGE_BYTES_MAX));
        }
        if let Ok(Request::StatMany(all)) = read(code::STATX, body, &payload) {
            prop_assert!(all.iter().all(|path| path.bytes.starts_with(b"/")));
        }
    }
}
