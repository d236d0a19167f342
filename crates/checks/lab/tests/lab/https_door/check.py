"""Judges a door over https by the protocols alone: HTTP by Python's own library, tokens by openssl.

usage: check.py keys FOLDER                  an issuer's key, and what it publishes: FOLDER/jwks.json
       check.py token FOLDER AUDIENCE SUB SCOPE
       check.py all FOLDER URL AUTHORITY MOUNT    everything, against the files of a mount
       check.py half FOLDER URL AUTHORITY PATH    half of an upload, which then waits for its end
"""

import base64
import hashlib
import http.client
import json
import os
import random
import re
import socket
import ssl
import subprocess
import sys
import time
import urllib.parse
import zlib

ISSUER = "https://iam.lab.example/"


def b64(data):
    if isinstance(data, str):
        data = data.encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def openssl(*words, feed=None):
    return subprocess.run(["openssl", *words], input=feed, check=True, capture_output=True).stdout


def make_keys(folder):
    os.makedirs(folder, exist_ok=True)
    for name in ["key", "other"]:
        openssl("genrsa", "-out", f"{folder}/{name}.pem", "2048")
    modulus = openssl("rsa", "-in", f"{folder}/key.pem", "-noout", "-modulus").decode()
    number = bytes.fromhex(modulus.strip().split("=")[1])
    key = {"kty": "RSA", "kid": "lab", "alg": "RS256", "n": b64(number), "e": b64(b"\1\0\1")}
    with open(f"{folder}/jwks.json", "w") as out:
        json.dump({"keys": [key]}, out)


def token(folder, audience, sub="ann", scope="storage.read:/data", key="key", head=None, **other):
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": audience, "sub": sub, "iat": now, "exp": now + 600}
    claims |= {"wlcg.ver": "1.0", "scope": scope} | other
    head = {"alg": "RS256", "kid": "lab", "typ": "JWT"} | (head or {})
    text = b64(json.dumps(head)) + "." + b64(json.dumps(claims))
    pem = f"{folder}/{key}.pem"
    return text + "." + b64(openssl("dgst", "-sha256", "-sign", pem, feed=text.encode()))


class Door:
    def __init__(self, url, authority):
        self.host, self.port = urllib.parse.urlsplit(url).netloc.split(":")
        self.url, self.tls = url, ssl.create_default_context(cafile=authority)

    def ask(self, method, path, shown=None, body=None, **headers):
        """Status, headers, body, on a connection of its own."""
        line = http.client.HTTPSConnection(self.host, int(self.port), context=self.tls, timeout=60)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if shown:
            headers["Authorization"] = f"Bearer {shown}"
        line.request(method, path, body=body, headers=headers)
        answer = line.getresponse()
        got = answer.status, answer.headers, answer.read()
        line.close()
        return got

    def dial(self):
        plain = socket.create_connection((self.host, int(self.port)), timeout=60)
        return self.tls.wrap_socket(plain, server_hostname=self.host)


def check(is_so, *said):
    if not is_so:
        raise SystemExit("check.py: " + " ".join(str(one) for one in said))


def status(got, wanted, *said):
    check(got[0] == wanted, *said, "is", got[0], "and not", wanted, got[2][:300])
    return got


def says(got, wanted, words, *said):
    text = status(got, wanted, *said)[2].decode()
    check(re.search(words, text), *said, "does not say", words, "but", text)


def who(door, folder):
    """Only who shows a token that is good now, and whom somebody here knows."""
    make = lambda **other: token(folder, door.url, **other)
    bare = door.ask("GET", "/data/file")
    says(bare, 401, "Authorization: Bearer", "nobody")
    check("Bearer" in bare[1]["WWW-Authenticate"], bare[1])
    now = int(time.time())
    for name, shown, words in [
        ("over", make(exp=now - 1), "over"),
        ("early", make(nbf=now + 3600), "clock"),
        ("another audience", token(folder, "https://else.example"), "audience"),
        ("another key", make(key="other"), "key"),
        ("another algorithm", make(head={"alg": "HS256"}), "RS256"),
        ("no algorithm", make(head={"alg": "none"}).rsplit(".", 1)[0] + ".", "RS256"),
        ("an unknown issuer", make(iss="https://else.example/"), "issuer list"),
        ("no profile", make(**{"wlcg.ver": "7.0"}), "WLCG"),
        ("nonsense", "x.y.z", "token"),
        ("large", "a" * 20000, "bytes"),
    ]:
        says(door.ask("GET", "/data/file", shown), 401, words, name)
    for name, shown, words in [
        ("no scope", make(scope="openid"), "storage.read:/PATH"),
        ("upwards", make(scope="storage.read:/data/../data2"), "no path"),
        ("a stranger", make(sub="eve"), "issuer add"),
        ("nobody", make(sub="carl"), "tieline id add"),
    ]:
        says(door.ask("GET", "/data/file", shown), 403, words, name)
    status(door.ask("GET", "/data/file", make()), 200, "ann")
    status(door.ask("GET", "/data/file?authz=Bearer%20" + make()), 200, "ann by the query")


def scopes(door, folder):
    data = token(folder, door.url, scope="storage.read:/data storage.modify:/data")
    for path in ["/data2/file", "/data2", "/data2/", "/", "/data%2F..%2Fdata2/file", "/data/%2e%2e/data2/file",
                 "/data/out", "/%64ata2/file", "//data2//file"]:
        got = door.ask("GET", path, data)
        check(got[0] in (400, 403), path, got[0], got[2][:200])
    for method, path, more in [("PUT", "/data2/new", {}), ("MKCOL", "/data2/new", {}), ("DELETE", "/data2/file", {}),
                               ("PROPFIND", "/data2", {"Depth": "1"}), ("PROPFIND", "/", {"Depth": "1"}),
                               ("MOVE", "/data/file", {"Destination": door.url + "/data2/x"})]:
        status(door.ask(method, path, data, **more), 403, method, path)
    for path in ["/data/file", "//data//file", "/%64ata/file", "/data/in"]:
        status(door.ask("GET", path, data), 200, path)
    below = token(folder, door.url, scope="storage.read:/data/deep")
    status(door.ask("GET", "/data/deep/file", below), 200, "below")
    status(door.ask("GET", "/data/file", below), 403, "above")
    maker = token(folder, door.url, scope="storage.create:/data")
    status(door.ask("PUT", "/data/made", maker, body=b"one"), 201, "create")
    status(door.ask("PUT", "/data/made", maker, body=b"two"), 403, "create over what is there")
    status(door.ask("GET", "/data/made", maker), 403, "create is not read")
    got = status(door.ask("HEAD", "/data/made", maker, Want_Digest="adler32"), 200, "what one made")
    check(got[1]["Digest"] == f"adler32={zlib.adler32(b'one'):08x}", got[1])
    status(door.ask("HEAD", "/data2/file", maker), 403, "what is beside")
    status(door.ask("DELETE", "/data/made", data), 204, "modify")


def rights(door, folder, mount):
    """A token of everything opens what its user may, and no more."""
    ann = token(folder, door.url, scope="storage.read:/ storage.modify:/")
    bob = token(folder, door.url, sub="bob", scope="storage.read:/ storage.modify:/")
    for path, hers, his in [("/data/hers", 200, 403), ("/data/his", 403, 200), ("/data/closed/file", 403, 200),
                            ("/data/groups", 200, 403), ("/data/listed", 403, 200)]:
        status(door.ask("GET", path, ann), hers, "ann", path)
        status(door.ask("GET", path, bob), his, "bob", path)
    status(door.ask("PUT", "/data/closed/new", ann, body=b"x"), 403, "a closed directory")
    status(door.ask("DELETE", "/data/sticky/his", ann), 403, "a sticky directory")
    status(door.ask("PUT", "/data/of-ann", ann, body=b"x"), 201, "a file of hers")
    about = os.stat(f"{mount}/data/of-ann")
    check((about.st_uid, about.st_mode & 0o777) == (12001, 0o644), about)


def parts(kind, body):
    boundary = re.fullmatch(r'multipart/byteranges; *boundary="?([^"]+)"?', kind)[1].encode()
    found = {}
    pieces = body.split(b"--" + boundary)
    check(pieces[-1].startswith(b"--"), "no end", body[-60:])
    for piece in pieces[1:-1]:
        head, _, data = piece.partition(b"\r\n\r\n")
        first, last, total = re.search(rb"(?i)content-range: bytes (\d+)-(\d+)/(\d+)", head).groups()
        found[int(first), int(last), int(total)] = data.removesuffix(b"\r\n")
    return found


def bytes_of(door, folder, mount):
    shown = token(folder, door.url)
    whole = open(f"{mount}/data/file", "rb").read()
    size, dice = len(whole), random.Random(7)
    got = status(door.ask("GET", "/data/file", shown), 200)
    check(got[2] == whole and int(got[1]["Content-Length"]) == size, "other bytes")
    tag = got[1]["ETag"]
    for first, last in [(0, 0), (size - 1, size - 1), (4095, 4096), (size - 5, size + 50)]:
        got = status(door.ask("GET", "/data/file", shown, Range=f"bytes={first}-{last}"), 206)
        check(got[2] == whole[first : last + 1], "range", first, last)
        check(got[1]["Content-Range"] == f"bytes {first}-{min(last, size - 1)}/{size}", got[1])
    check(door.ask("GET", "/data/file", shown, Range="bytes=-10")[2] == whole[-10:], "the last ten")
    got = status(door.ask("GET", "/data/file", shown, Range=f"bytes={size}-"), 416)
    check(got[1]["Content-Range"] == f"bytes */{size}", got[1])
    for count in [2, 40, 600]:
        starts = sorted(dice.sample(range(0, size - 3000, 4000), count))
        wanted = [(start, start + dice.randrange(3000)) for start in starts]
        text = "bytes=" + ",".join(f"{first}-{last}" for first, last in wanted)
        got = status(door.ask("GET", "/data/file", shown, Range=text), 206)
        found = parts(got[1]["Content-Type"], got[2])
        check(list(found) == [(first, last, size) for first, last in wanted], "parts in their order")
        check(all(data == whole[first : last + 1] for (first, last, _), data in found.items()), "parts")
    status(door.ask("GET", "/data/file", shown, If_None_Match=tag), 304)
    status(door.ask("GET", "/data/file", shown, If_Match='"x"'), 412)
    got = door.ask("GET", "/data/file", shown, Range="bytes=0-9", If_Range='"x"')
    check(got[0] == 200 and got[2] == whole, "an old version's range")
    for want, is_right in [("adler32", f"adler32={zlib.adler32(whole):08x}"), ("ADLER32;q=1, md5;q=0.1", f"adler32={zlib.adler32(whole):08x}"),
                           ("md5", "md5=" + base64.b64encode(hashlib.md5(whole).digest()).decode()),
                           ("sha-256", "sha-256=" + base64.b64encode(hashlib.sha256(whole).digest()).decode()), ("unixcksum", None)]:
        got = status(door.ask("HEAD", "/data/file", shown, Want_Digest=want), 200)
        check(got[1]["Digest"] == is_right and got[2] == b"", want, got[1])
    empty = status(door.ask("GET", "/data/empty", shown), 200)
    check(empty[2] == b"" and empty[1]["Content-Length"] == "0", empty)
    name = "/data/" + urllib.parse.quote("ä b%&#?+\"'.txt")
    check(door.ask("GET", name, shown)[2] == b"odd", name)


def listings(door, folder, mount):
    shown = token(folder, door.url)
    body = b"<D:propfind xmlns:D='DAV:'><D:prop><D:getcontentlength/><D:resourcetype/></D:prop></D:propfind>"
    got = status(door.ask("PROPFIND", "/data/many", shown, body=body, Depth="1"), 207)
    import xml.etree.ElementTree as tree

    found = {}
    for one in tree.fromstring(got[2]).iter("{DAV:}response"):
        length = one.find(".//{DAV:}getcontentlength")
        href = urllib.parse.unquote(one.find("{DAV:}href").text)
        found[href] = int(length.text) if length is not None and length.text else None
    there = {"/data/many/": None}
    for one in os.scandir(f"{mount}/data/many"):
        slash = "/" if one.is_dir() else ""
        there[f"/data/many/{one.name}{slash}"] = None if one.is_dir() else one.stat().st_size
    check(found == there, len(found), len(there))
    got = status(door.ask("PROPFIND", "/data", shown), 403)
    check(b"propfind-finite-depth" in got[2], got[2])
    bomb = b"<!DOCTYPE a [<!ENTITY b 'c'>]><propfind xmlns='DAV:'><allprop/></propfind>"
    status(door.ask("PROPFIND", "/data", shown, body=bomb, Depth="0"), 400)
    status(door.ask("PROPFIND", "/data", shown, body=b" " * 100000, Depth="0"), 413)


def uploads(door, folder, mount):
    shown = token(folder, door.url, scope="storage.read:/data storage.modify:/data")
    data = os.urandom(9_000_001)
    with door.dial() as line:
        line.sendall(head("/data/up", shown, len(data)) + data[:5_000_000])
        time.sleep(0.5)
        check(not os.path.exists(f"{mount}/data/up"), "half a file is seen")
        status(door.ask("GET", "/data/up", shown), 404, "half a file")
        line.sendall(data[5_000_000:])
        answer = line.recv(4096)
        check(answer.startswith(b"HTTP/1.1 201"), answer)
        # At once: no look before it told anybody's cache that it was not there for long.
        check(open(f"{mount}/data/up", "rb").read() == data, "other bytes")
    for end in [1, 5_000_000]:
        with door.dial() as line:
            line.sendall(head("/data/cut", shown, len(data)) + data[:end])
    status(door.ask("PUT", "/data/up", shown, body=b"new"), 204, "replaced")
    check(open(f"{mount}/data/up", "rb").read() == b"new", "not replaced")
    status(door.ask("PUT", "/data/up", shown, body=b"x", If_None_Match="*"), 412)
    status(door.ask("PUT", "/data/none/up", shown, body=b"x"), 409)
    status(door.ask("PUT", "/data", shown, body=b"x"), 405)
    good, bad = f"adler32={zlib.adler32(data):08x}", "adler32=00000001"
    status(door.ask("PUT", "/data/sum", shown, body=data, Digest=bad), 412, "a wrong sum")
    check(not os.path.exists(f"{mount}/data/sum"), "kept in spite of its sum")
    got = status(door.ask("PUT", "/data/sum", shown, body=data, Digest=good, Want_Digest="adler32"), 201)
    check(got[1]["Digest"] == good, got[1])
    status(door.ask("PUT", "/data/chunks", shown, body=iter([b"one", b"two"])), 201)
    check(open(f"{mount}/data/chunks", "rb").read() == b"onetwo", "chunks")
    # Who is refused is so before he sends.
    reader = token(folder, door.url)
    for who, wanted in [(shown, b"HTTP/1.1 100"), (reader, b"HTTP/1.1 403")]:
        with door.dial() as line:
            line.sendall(head("/data/expect", who, 4, "Expect: 100-continue\r\n"))
            check(line.recv(4096).startswith(wanted), wanted)
    with door.dial() as line:
        line.sendall(head("/data/large", shown, 1 << 55, "Expect: 100-continue\r\n"))
        answer = line.recv(4096)
        check(answer.startswith((b"HTTP/1.1 507", b"HTTP/1.1 413")), answer)
    check(sorted(name for name in os.listdir(f"{mount}/data") if name in ("cut", "expect", "large")) == [], "left behind")


def crowd(door, folder, mount):
    """Many at once, each with a file of his own."""
    import concurrent.futures

    shown = token(folder, door.url, scope="storage.read:/data storage.modify:/data")
    data = [os.urandom(300_000 + number) for number in range(24)]

    def one(number):
        name = f"/data/crowd-{number}"
        status(door.ask("PUT", name, shown, body=data[number]), 201, name)
        check(door.ask("GET", name, shown)[2] == data[number], name, "other bytes")

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        list(pool.map(one, range(24)))
    for number in range(24):
        check(open(f"{mount}/data/crowd-{number}", "rb").read() == data[number], "crowd", number)


def nonsense(door, folder):
    shown = token(folder, door.url)
    for text, wanted in [
        (b"GET /data/file HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", b"431"),
        (b"GET /data/%zz HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET /data/%00 HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET /../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", b"501"),
        (b"GET http://else/data/file HTTP/1.1\r\nHost: x\r\n\r\n", b"4"),
        (b"nonsense\r\n\r\n", b"400"),
    ]:
        with door.dial() as line:
            line.sendall(text)
            answer = line.recv(4096)
            check(answer.startswith(b"HTTP/1.1 " + wanted), text[:40], answer[:60])
    many = "bytes=" + ",".join(f"{at}-{at}" for at in range(0, 4000, 2))
    check(door.ask("GET", "/data/file", shown, Range=many)[0] in (200, 416), "too many ranges")
    # Many at once, of one who is slow: others are served.
    slow = [door.dial() for _ in range(50)]
    for line in slow:
        line.sendall(b"GET /data/file HTTP/1.1\r\nHost: x\r\n")
    status(door.ask("HEAD", "/data/file", shown), 200, "beside slow ones")
    for line in slow:
        line.close()


def head(path, shown, length, more=""):
    return (f"PUT {path} HTTP/1.1\r\nHost: door\r\nAuthorization: Bearer {shown}\r\n"
            f"Content-Length: {length}\r\n{more}\r\n").encode()


def half(folder, url, authority, path):
    door = Door(url, authority)
    shown = token(folder, url, scope="storage.modify:/data")
    with door.dial() as line:
        line.sendall(head(path, shown, 8_000_000) + os.urandom(6_000_000))
        print("half", flush=True)
        check(line.recv(1) == b"", "it was answered")


def main(words):
    match words:
        case ["keys", folder]:
            make_keys(folder)
        case ["token", folder, audience, sub, scope]:
            print(token(folder, audience, sub=sub, scope=scope))
        case ["half", folder, url, authority, path]:
            half(folder, url, authority, path)
        case ["all", folder, url, authority, mount]:
            door = Door(url, authority)
            who(door, folder)
            scopes(door, folder)
            rights(door, folder, mount)
            bytes_of(door, folder, mount)
            listings(door, folder, mount)
            uploads(door, folder, mount)
            crowd(door, folder, mount)
            nonsense(door, folder)
            print("all as it should be")
        case _:
            raise SystemExit(__doc__)


main(sys.argv[1:])
