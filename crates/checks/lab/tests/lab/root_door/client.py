"""A client for root:// of our own, from the protocol alone: reads what it is told to read, checks
every page, and says what no client should say.

usage: client.py PORT FILE CHECKED_LENGTH PATH TICKET...    (tickets as hexadecimal digits)

FILE is what PATH leads to, as a mount shows it. Prints `done` when all was as it has to be.
"""

import socket
import struct
import sys
import zlib

PORT, FILE, LENGTH, PATH, *TICKETS = sys.argv[1:]
BYTES = open(FILE, "rb").read()
assert len(BYTES) == int(LENGTH)

TABLE = []
for start in range(256):
    value = start
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    TABLE.append(value)


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value = TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


class Refused(Exception):
    pass


class Ended(Exception):
    pass


class Client:
    def __init__(self, ticket=None):
        self.socket = socket.create_connection(("127.0.0.1", int(PORT)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.next = 0
        if ticket is not None:
            self.login(ticket)

    def raw(self, data):
        self.socket.sendall(data)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(min(count - len(data), 1 << 20))
            except ConnectionResetError:
                more = b""
            if not more:
                raise Ended()
            data += more
        return data

    def ask(self, code, body=b"", payload=b""):
        self.next += 1
        stream = struct.pack(">H", self.next & 0xFFFF)
        head = stream + struct.pack(">H", code) + body.ljust(16, b"\0")
        self.raw(head + struct.pack(">i", len(payload)) + payload)
        return stream

    def hear(self):
        """One piece of an answer: stream, status, payload, and what follows the head of pages."""
        stream, status, length = struct.unpack(">2sHI", self.exactly(8))
        payload, pages = self.exactly(length), b""
        if status == 4007:
            pages = self.exactly(struct.unpack(">I", payload[12:16])[0])
        return stream, status, payload, pages

    def tell(self, code, body=b"", payload=b""):
        """All of an answer."""
        wanted, all = self.ask(code, body, payload), b""
        while True:
            stream, status, payload, _ = self.hear()
            assert stream == wanted, (stream, wanted)
            if status == 4003:
                number = struct.unpack(">I", payload[:4])[0]
                text = payload[4:]
                assert text.endswith(b"\0") and b"\0" not in text[:-1], text
                raise Refused(number, text[:-1].decode())
            all += payload
            if status == 0:
                return all
            assert status == 4000, status

    def hello(self):
        self.raw(struct.pack(">5i", 0, 0, 0, 4, 2012))
        assert self.hear()[2] == struct.pack(">2i", 0x511, 1)
        version, flags = struct.unpack(">2I", self.tell(3006, struct.pack(">iBB", 0x511, 1, 3)))
        assert (version, flags & 1) == (0x511, 1)

    def login(self, ticket):
        self.hello()
        told = self.tell(3007, struct.pack(">i8sBBBB", 77, b"someone", 0, 0xDD, 0x85, 0))
        assert told[16:].startswith(b"&P=krb5,xrootd/"), told
        shown = b"krb5\0" + bytes.fromhex(ticket)
        assert self.tell(3000, b"\0" * 12 + b"krb5", shown) == b""

    def open(self, path, options=0x10):
        return struct.unpack(">I", self.tell(3010, struct.pack(">2H", 0, options), path)[:4])[0]

    def read(self, handle, offset, length):
        return self.tell(3013, struct.pack(">Iqi", handle, offset, length))

    def pages(self, handle, offset, length):
        """Bytes whose pages all have the checks that came with them."""
        wanted, all, at = self.ask(3030, struct.pack(">Iqi", handle, offset, length)), b"", offset
        while True:
            stream, status, payload, pages = self.hear()
            assert (stream, status, len(payload)) == (wanted, 4007, 24), (stream, status)
            check, again, code, kind, _, count, place = struct.unpack(">I2sBB4sIQ", payload)
            assert check == crc32c(payload[4:]) and again == wanted and code == 30
            assert (place, count) == (at, len(pages))
            while pages:
                page = pages[4 : 4 + 4096 - at % 4096]
                assert struct.unpack(">I", pages[:4])[0] == crc32c(page), at
                all, at, pages = all + page, at + len(page), pages[4 + len(page) :]
            if kind == 0:
                return all


def refused(number, call, *words):
    try:
        call(*words)
    except Refused as error:
        assert error.args[0] == number, (error, number)
        assert len(error.args[1]) > 3, error
        return error.args[1]
    raise AssertionError(f"{words} is answered")


def ended(client):
    try:
        while client.exactly(1):
            pass
    except (Ended, socket.timeout) as why:
        assert isinstance(why, Ended), "it is not ended"


def reads(client):
    path = PATH.encode()
    handle = client.open(path)
    assert client.read(handle, 0, len(BYTES)) == BYTES
    for offset, length in [(0, 1), (4095, 2), (len(BYTES) - 3, 100), (len(BYTES), 5), (1 << 50, 9)]:
        assert client.read(handle, offset, length) == BYTES[offset : offset + length]
    assert client.read(handle, 5, 0) == b""
    for offset, length in [(0, 4096), (1000, 3), (4000, 200_000), (len(BYTES) - 5000, 9000)]:
        assert client.pages(handle, offset, length) == BYTES[offset : offset + length]
    assert client.pages(handle, len(BYTES) + 7, 100) == b""
    other = client.open(path + b"?cgi=of&no=use")
    ranges = [(handle if at % 3 else other, at * 1009, at * 7 % 3000) for at in range(1024)]
    asked = b"".join(struct.pack(">Iiq", file, length, offset) for file, offset, length in ranges)
    told = client.tell(3025, b"", asked)
    for file, offset, length in ranges:
        head, told = told[:16], told[16:]
        assert head == struct.pack(">Iiq", file, length, offset)
        assert told[:length] == BYTES[offset : offset + length]
        told = told[length:]
    assert told == b""
    most = 2097136
    assert len(client.tell(3025, b"", struct.pack(">Iiq", handle, most, 1))) == most + 16
    refused(3008, client.tell, 3025, b"", struct.pack(">Iiq", handle, most + 1, 1))
    refused(3002, client.tell, 3025, b"", asked + asked[:16])
    refused(3005, client.tell, 3025, b"", struct.pack(">Iiq", handle, 9, len(BYTES) - 3))
    refused(3000, client.tell, 3025, b"", asked[:15])
    refused(3000, client.tell, 3025, b"", struct.pack(">Iiq", handle, -1, 0))
    refused(3000, client.read, handle, -1, 5)
    refused(3000, client.read, handle, 0, -1)
    told = client.tell(3001, struct.pack(">H", 3), path + b"?cks.type=adler32\0")
    assert told == f"adler32 {zlib.adler32(BYTES):08x}\0".encode(), told
    stat = client.tell(3017, b"\0" * 12 + struct.pack(">I", handle)).split()
    assert int(stat[1]) == len(BYTES) and int(stat[2]) & 16, stat
    assert client.tell(3022, b"", path + b"\n" + path) == bytes([int(stat[2])] * 2)
    assert client.tell(3001, struct.pack(">H", 7), b"readv_iov_max readv_ior_max what\0") == (
        b"1024\n2097136\nwhat\n"
    )
    client.tell(3003, struct.pack(">I", handle))
    refused(3004, client.read, handle, 0, 1)
    assert client.read(other, 0, 1) == BYTES[:1]


def pipelines(client):
    """Requests one behind the other without waiting; answers in whatever order."""
    handle = client.open(PATH.encode())
    wanted = {}
    for at in range(300):
        stream = client.ask(3013, struct.pack(">Iqi", handle, at * 777, 500))
        wanted[stream] = BYTES[at * 777 : at * 777 + 500]
    for _ in range(300):
        stream, status, payload, _ = client.hear()
        assert status == 0 and wanted.pop(stream) == payload
    assert not wanted


def nonsense(client, ticket):
    for code in [0, 2999, 3005, 3033, 65535]:
        refused(3006, client.tell, code, b"\xff" * 16, b"whatever")
    for path in [b"", b"\0", b"relative", b"/" + b"a" * 5000]:
        for code in [3017, 3010, 3027, 3004]:
            if code != 3017 or path.strip(b"\0"):
                client_says = lambda: client.tell(code, b"", path)
                try:
                    client_says()
                except Refused as error:
                    assert error.args[0] in (3000, 3001, 3002), error
                else:
                    raise AssertionError(path)
    refused(3011, client.open, b"/" + b"/".join([b"x"] * 500))
    refused(3011, client.open, b"/data/../../data/none")
    refused(3016, client.open, b"/data")
    refused(3004, client.tell, 3003, b"\xff" * 16)
    for code in [3002, 3008, 3009, 3014, 3015, 3016, 3019, 3026, 3028, 3031, 3032]:
        refused(3025, client.tell, code, b"", b"/data/new")
    for options in [0x02, 0x08, 0x20, 0x200, 0x8000, 0x462]:
        refused(3025, client.open, b"/data/new", options)
    for code in [3020, 3021, 3024]:
        refused(3013, client.tell, code, b"", b"/data")
    refused(3011, client.tell, 3023, b"\7" * 16)
    refused(3006, client.tell, 3007, b"")
    refused(3006, client.tell, 3000, b"\0" * 12 + b"krb5", b"krb5\0")
    client.tell(3011)
    # A ticket counts once.
    refused(3010, lambda: Client(ticket).open(b"/data"))
    for length in [-1, -(1 << 31), 65537, (1 << 31) - 1]:
        other = Client()
        other.hello()
        other.raw(b"\0\1" + struct.pack(">H", 3007) + b"\0" * 16 + struct.pack(">i", length))
        assert other.hear()[1] == 4003
        ended(other)
    for bytes in [b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"\xff" * 20, b"\0" * 20]:
        other = Client()
        other.raw(bytes)
        ended(other)
    other = Client()
    other.hello()
    for code in [3017, 3010, 3011, 3023, 3001]:
        refused(3006, other.tell, code, struct.pack(">H", 7), b"/data")
    refused(3006, other.tell, 3000, b"\0" * 12 + b"krb5", b"krb5\0")
    told = other.tell(3007, b"\0" * 16)
    refused(3030, other.tell, 3000, b"\0" * 12 + b"gsi\0", b"gsi\0")
    other.tell(3000, b"\0" * 12 + b"krb5", b"krb5\0" + b"\x6e" * 40)
    refused(3010, other.open, b"/data")


def greedy(hungry, other):
    """Some ask for much and read nothing; another is served meanwhile."""
    for client in hungry:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        handle = client.open(PATH.encode())
        for _ in range(60):
            client.ask(3013, struct.pack(">Iqi", handle, 0, len(BYTES)))
    handle = other.open(PATH.encode())
    for _ in range(5):
        assert other.read(handle, 0, len(BYTES)) == BYTES


clients = [Client(ticket) for ticket in TICKETS]
reads(clients[0])
pipelines(clients[0])
nonsense(clients[0], TICKETS[0])
greedy(clients[1:], clients[0])
print("done")
