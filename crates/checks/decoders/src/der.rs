//! Tokens of Kerberos, of which a server reads the parts in clear before anything is proven.

use tieline_auth::gss::asked;

pub fn feed(token: &[u8]) {
    if let Some(name) = asked::server(token) {
        assert!(name.len() <= 256 && name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
    }
    let _ = asked::enctypes(token);
    let framed = asked::framed(token, &[9, 9]);
    let of_framed = (asked::server(&framed), asked::authenticator(&framed).map(<[u8]>::to_vec));
    let of_token = (asked::server(token), asked::authenticator(token).map(<[u8]>::to_vec));
    assert_eq!(of_framed, of_token, "a request says the same, framed or not");
}
