"""MB/s of gss_wrap and gss_unwrap together, on one core, with privacy: what the paper's system paid.

Arguments: the service's name. The keys come from KRB5_CLIENT_KTNAME and KRB5_KTNAME.
"""
import ctypes, sys, time

gss = ctypes.CDLL("libgssapi_krb5.so.2")

class Buffer(ctypes.Structure):
    _fields_ = [("length", ctypes.c_size_t), ("value", ctypes.c_void_p)]

def buffer(data):
    held = ctypes.create_string_buffer(data, len(data))
    return Buffer(len(data), ctypes.cast(held, ctypes.c_void_p)), held

def call(function, *arguments):
    minor = ctypes.c_uint32()
    major = function(ctypes.byref(minor), *arguments)
    if major & 0xFFFF0000:
        sys.exit(f"{function.__name__}: {major:#x} {minor.value}")
    return major

OID_BYTES = bytes([0x2A, 0x86, 0x48, 0x86, 0xF7, 0x12, 0x01, 0x02, 0x02, 0x01])

class Oid(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint32), ("elements", ctypes.c_char_p)]

principal = Oid(len(OID_BYTES), OID_BYTES)
name, text = ctypes.c_void_p(), buffer(sys.argv[1].encode())
call(gss.gss_import_name, ctypes.byref(text[0]), ctypes.byref(principal), ctypes.byref(name))

ours, theirs = ctypes.c_void_p(), ctypes.c_void_p()
token = Buffer(0, None)
while True:
    said = Buffer(0, None)
    state = call(
        gss.gss_init_sec_context, None, ctypes.byref(ours), name, None, ctypes.c_uint32(62),
        ctypes.c_uint32(0), None, ctypes.byref(token), None, ctypes.byref(said), None, None,
    )
    if said.length:
        token = Buffer(0, None)
        call(
            gss.gss_accept_sec_context, ctypes.byref(theirs), None, ctypes.byref(said), None,
            None, None, ctypes.byref(token), None, None, None,
        )
    if not state & 1:
        break

MIB = 1 << 20
plain, held = buffer(bytes(MIB))
count, start = 0, time.process_time()
while time.process_time() - start < 3:
    sealed, opened = Buffer(0, None), Buffer(0, None)
    call(gss.gss_wrap, ours, 1, ctypes.c_uint32(0), ctypes.byref(plain), None, ctypes.byref(sealed))
    call(gss.gss_unwrap, theirs, ctypes.byref(sealed), ctypes.byref(opened), None, None)
    assert opened.length == MIB
    for done in (sealed, opened):
        call(gss.gss_release_buffer, ctypes.byref(done))
    count += 1
print(count * MIB / 1e6 / (time.process_time() - start))
