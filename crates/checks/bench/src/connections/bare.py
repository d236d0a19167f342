"""Milliseconds of a processor, and of the clock, that GSSAPI needs to make one context, both ends.

Arguments: the service's name, and how many contexts. The keys come from KRB5_CLIENT_KTNAME and
KRB5_KTNAME, the ticket from KRB5CCNAME.
"""
import ctypes, sys, time

gss = ctypes.CDLL("libgssapi_krb5.so.2")

class Buffer(ctypes.Structure):
    _fields_ = [("length", ctypes.c_size_t), ("value", ctypes.c_void_p)]

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
held = ctypes.create_string_buffer(sys.argv[1].encode())
text = Buffer(len(sys.argv[1]), ctypes.cast(held, ctypes.c_void_p))
name = ctypes.c_void_p()
call(gss.gss_import_name, ctypes.byref(text), ctypes.byref(principal), ctypes.byref(name))

def make():
    ours, theirs = ctypes.c_void_p(), ctypes.c_void_p()
    token = Buffer(0, None)
    while True:
        said = Buffer(0, None)
        state = call(
            gss.gss_init_sec_context, None, ctypes.byref(ours), name, None, ctypes.c_uint32(62),
            ctypes.c_uint32(0), None, ctypes.byref(token), None, ctypes.byref(said), None, None,
        )
        call(gss.gss_release_buffer, ctypes.byref(token))
        if said.length:
            call(
                gss.gss_accept_sec_context, ctypes.byref(theirs), None, ctypes.byref(said), None,
                None, None, ctypes.byref(token), None, None, None,
            )
            call(gss.gss_release_buffer, ctypes.byref(said))
        if not state & 1:
            break
    for context in (ours, theirs):
        call(gss.gss_delete_sec_context, ctypes.byref(context), None)

make()
count = int(sys.argv[2])
busy, start = time.process_time(), time.monotonic()
for _ in range(count):
    make()
print((time.process_time() - busy) * 1e3 / count, (time.monotonic() - start) * 1e3 / count)
