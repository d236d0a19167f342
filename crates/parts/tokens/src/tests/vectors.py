"""Makes the tokens beside it, with PyJWT (`pip install pyjwt cryptography`).

Keys are new with each run: `vectors.py > vectors.json`. Times are around NOW of `tests.rs`.
"""

import base64
import json

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

NOW = 1_800_000_000
ISSUER, AUDIENCE = "https://iam.example/", "https://door.example:8443"

rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ec_key = ec.generate_private_key(ec.SECP256R1())
other_key = ec.generate_private_key(ec.SECP256R1())
short_key = rsa.generate_private_key(public_exponent=65537, key_size=1024)


def jwk(key, kid, algorithm, **more):
    made = algorithm.to_jwk(key.public_key(), as_dict=True)
    made.pop("key_ops", None)
    return {**made, "kid": kid, **more}


def claims(**other):
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "6f1e2c",
        "iat": NOW - 60,
        "nbf": NOW - 60,
        "exp": NOW + 3600,
        "jti": "1",
        "wlcg.ver": "1.0",
        "scope": "storage.read:/data storage.create:/data/new openid",
    }
    usual.update(other)
    return {name: value for name, value in usual.items() if value is not None}


def es256(key=ec_key, kid="ec1", headers=None, **other):
    headers = {"kid": kid, **(headers or {})} if kid else headers
    return jwt.encode(claims(**other), key, algorithm="ES256", headers=headers)


def rs256(key=rsa_key, **other):
    return jwt.encode(claims(**other), key, algorithm="RS256", headers={"kid": "rsa1"})


def raw(header, payload, signature):
    parts = [json.dumps(header).encode(), payload, signature]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts).decode()


def swapped(token):
    """The signature of one token behind the claims of another."""
    head, _, signature = token.split(".")
    return ".".join([head, es256(sub="root").split(".")[1], signature])


public = rsa_key.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def hmac_by_public_key():
    import hashlib
    import hmac

    head = {"alg": "HS256", "typ": "JWT", "kid": "rsa1"}
    unsigned = raw(head, json.dumps(claims()).encode(), b"").rsplit(".", 1)[0]
    mac = hmac.new(public, unsigned.encode(), hashlib.sha256).digest()
    return unsigned + "." + base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


tokens = {
    "es256": es256(),
    "rs256": rs256(),
    "no-kid": es256(kid=None),
    "audiences": es256(aud=["https://else.example", AUDIENCE]),
    "fractions": es256(exp=NOW + 3600.5, iat=NOW - 60.25),
    "version-1.3": es256(**{"wlcg.ver": "1.3"}),
    "groups": es256(sub="other", **{"wlcg.groups": ["/cms/x", "/cms"]}),
    "stage": es256(scope="storage.stage:/tape storage.read:/data"),
    "nearly-over": es256(exp=NOW + 1),
    "clock-ahead": es256(nbf=NOW + 50, iat=NOW + 50),
    # From here on none is good.
    "bad-none": raw({"alg": "none"}, json.dumps(claims()).encode(), b""),
    "bad-hmac": hmac_by_public_key(),
    "bad-key": es256(key=other_key),
    "bad-kid": es256(kid="ec2"),
    "bad-short-key": rs256(key=short_key),
    "bad-swapped": swapped(es256()),
    "bad-crit": es256(headers={"crit": ["exp"]}),
    "bad-issuer": es256(iss="https://iam.example"),
    "bad-audience": es256(aud="https://else.example"),
    "bad-no-audience": es256(aud=None),
    "bad-over": es256(exp=NOW - 1),
    "bad-over-now": es256(exp=NOW),
    "bad-no-end": es256(exp=None),
    "bad-end": es256(exp="tomorrow"),
    "bad-early": es256(nbf=NOW + 61),
    "bad-issued": es256(iat=NOW + 3000, nbf=None),
    "bad-no-version": es256(**{"wlcg.ver": None}),
    "bad-version": es256(**{"wlcg.ver": "2.0"}),
    "bad-version-form": es256(**{"wlcg.ver": "1"}),
    "bad-subject": es256(sub="a\nb"),
    "bad-no-subject": es256(sub=None),
    "bad-nobody": es256(sub="other"),
    "bad-no-scope": es256(scope=None),
    "bad-other-scope": es256(scope="openid compute.read storage.stage:/data"),
    "bad-upwards": es256(scope="storage.read:/data/../data2"),
    "bad-slash": es256(scope="storage.read:/data%2F..%2Fdata2"),
    "bad-relative": es256(scope="storage.read:data"),
    "bad-no-path": es256(scope="storage.read"),
}
keys = [
    jwk(rsa_key, "rsa1", RSAAlgorithm, alg="RS256", use="sig"),
    jwk(ec_key, "ec1", ECAlgorithm),
    jwk(other_key, "enc", ECAlgorithm, use="enc"),
    {"kty": "oct", "kid": "secret", "k": "AAAA"},
]
print(json.dumps({"keys": keys, "tokens": tokens}, indent=1))
