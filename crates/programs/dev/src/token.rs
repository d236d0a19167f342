//! `tieline dev token`: tokens of the issuer that a development federation with a door believes.

use crate::doors::DoorState;
use crate::{Dir, state};
use anyhow::{Context, bail};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use std::io::Write;
use std::path::Path;
use tieline_types::Span;
use tieline_world::World;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Whose: ann, bob or daemon, who must be a user of the federation (`tieline id add ann`)
    #[arg(default_value = "ann")]
    user: String,
    /// What it allows: storage.read:/PATH, storage.create:/PATH, storage.modify:/PATH; may be given
    /// several times. Without, to read and change all that its user may
    #[arg(long)]
    scope: Vec<String>,
    /// How long it holds
    #[arg(long, default_value = "1h")]
    life: Span,
    #[command(flatten)]
    dir: Dir,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let dir = args.dir.path()?;
    let Some(door) = state::read(&dir)?.door else {
        bail!("the federation in {} has no door: start it with `--doors`", dir.display());
    };
    let scope = match args.scope.as_slice() {
        [] => "storage.read:/ storage.modify:/".to_owned(),
        scope => scope.join(" "),
    };
    let token = sign(&door, &args.user, &scope, args.life)?;
    writeln!(std::io::stdout().lock(), "{token}")?;
    Ok(())
}

fn sign(door: &DoorState, user: &str, scope: &str, life: Span) -> anyhow::Result<String> {
    let path = &door.issuer_key;
    let key = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key);
    let key = key.ok().with_context(|| format!("{} is no key", path.display()))?;
    let world = World::real();
    let now = world.clock.wall().as_secs();
    let claims = json!({
        "iss": door.issuer,
        "sub": user,
        "aud": door.https,
        "iat": now,
        "nbf": now,
        "exp": now + life.0.as_secs(),
        "jti": format!("{:016x}", world.random()),
        "wlcg.ver": "1.0",
        "scope": scope,
    });
    let encode = |part: &[u8]| URL_SAFE_NO_PAD.encode(part);
    let head = json!({ "alg": "ES256", "typ": "JWT" });
    let signed = format!(
        "{}.{}",
        encode(head.to_string().as_bytes()),
        encode(claims.to_string().as_bytes())
    );
    let signature = key.sign(&SystemRandom::new(), signed.as_bytes());
    let signature = signature.ok().context("the token cannot be signed")?;
    Ok(format!("{signed}.{}", encode(signature.as_ref())))
}

/// Makes the issuer's key, and gives the public one: a point, in digits.
pub fn make_key(path: &Path) -> anyhow::Result<String> {
    let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
    let made = made.ok().context("no key can be made")?;
    tieline_machine::private::write_whole(path, made.as_ref())
        .with_context(|| format!("cannot write {}", path.display()))?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, made.as_ref());
    let key = key.ok().context("the key that was made is none")?;
    Ok(key.public_key().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}
