"""A file system that can less than a local disk, as HDFS by FUSE and dCache by NFS can less.

usage: awkward.py DIRECTORY MOUNT     passes through to DIRECTORY, and stays in the foreground

* No locks of either kind.
* A file is written once, from its beginning to its end, by whoever created it; nothing is renamed
  onto what exists, and times cannot be set. Its bytes are there some time after it was closed.
* Handles go stale: when the file is removed, and every so many of them after their first bytes.
"""

import ctypes
import errno
import itertools
import os
import sys
import threading
import time

import fusepy

STALE_EVERY = 5
CLOSING_SECONDS = 0.1


def refuse(number):
    raise fusepy.FuseOSError(number)


class Operations(ctypes.Structure):
    """Those that fusepy knows, and those of libfuse 2.9 up to flock."""

    _fields_ = fusepy.fuse_operations._fields_ + [
        ("poll", ctypes.c_void_p),
        ("write_buf", ctypes.c_void_p),
        ("read_buf", ctypes.c_void_p),
        (
            "flock",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_char_p,
                ctypes.POINTER(fusepy.fuse_file_info),
                ctypes.c_int,
            ),
        ),
    ]


fusepy.fuse_operations = Operations


class Session(fusepy.FUSE):
    def flock(self, path, info, operation):
        return -errno.ENOLCK


class Awkward:
    use_ns = True

    def __init__(self, root):
        self.root = root
        self.opened = itertools.count(1)
        self.drafts = {}
        self.doomed = set()
        self.guard = threading.Lock()

    def __call__(self, operation, *arguments):
        return getattr(self, operation)(*arguments)

    def below(self, path):
        return self.root + path

    def flock(self, *_):
        refuse(errno.ENOLCK)

    def lock(self, *_):
        refuse(errno.ENOLCK)

    def create(self, path, mode):
        handle = os.open(self.below(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with self.guard:
            self.drafts[handle] = bytearray()
        return handle

    def open(self, path, flags):
        if flags & (os.O_ACCMODE | os.O_TRUNC | os.O_APPEND) != os.O_RDONLY:
            refuse(errno.EOPNOTSUPP)
        handle = os.open(self.below(path), os.O_RDONLY)
        with self.guard:
            if next(self.opened) % STALE_EVERY == 0:
                self.doomed.add(handle)
        return handle

    def read(self, path, size, offset, handle):
        if os.fstat(handle).st_nlink == 0 or (offset > 0 and handle in self.doomed):
            refuse(errno.ESTALE)
        return os.pread(handle, size, offset)

    def write(self, path, data, offset, handle):
        draft = self.drafts[handle]
        if offset != len(draft):
            refuse(errno.EOPNOTSUPP)
        draft += data
        return len(data)

    def release(self, path, handle):
        with self.guard:
            draft = self.drafts.pop(handle, None)
            self.doomed.discard(handle)
        if draft:
            # Behind the caller: whoever closes or renames does not wait for it.
            threading.Thread(target=self.close, args=(handle, draft)).start()
        else:
            os.close(handle)

    def close(self, handle, draft):
        time.sleep(CLOSING_SECONDS)
        os.pwrite(handle, draft, 0)
        os.close(handle)

    def getattr(self, path, handle=None):
        if handle is None:
            known = os.lstat(self.below(path))
        else:
            known = os.fstat(handle)
            if known.st_nlink == 0:
                refuse(errno.ESTALE)
        names = ("mode", "ino", "nlink", "uid", "gid", "size", "blocks")
        told = {f"st_{name}": getattr(known, f"st_{name}") for name in names}
        told.update({f"st_{name}": getattr(known, f"st_{name}_ns") for name in ("atime", "mtime", "ctime")})
        return told

    def rename(self, old, new):
        if os.path.lexists(self.below(new)):
            # What HDFS by FUSE says then.
            refuse(errno.EIO)
        os.rename(self.below(old), self.below(new))

    def truncate(self, *_):
        refuse(errno.EOPNOTSUPP)

    def utimens(self, *_):
        refuse(errno.EOPNOTSUPP)

    def unlink(self, path):
        os.unlink(self.below(path))

    def mkdir(self, path, mode):
        os.mkdir(self.below(path), mode)

    def rmdir(self, path):
        os.rmdir(self.below(path))

    def readdir(self, path, handle):
        return [".", "..", *os.listdir(self.below(path))]

    def statfs(self, path):
        known = os.statvfs(self.below(path))
        names = ("bavail", "bfree", "blocks", "bsize", "favail", "ffree", "files", "frsize", "namemax")
        return {f"f_{name}": getattr(known, f"f_{name}") for name in names}


# Not through the kernel's pages: they would read again what was stale.
Session(
    Awkward(sys.argv[1]),
    sys.argv[2],
    foreground=True,
    fsname="awkward",
    big_writes=True,
    direct_io=True,
    hard_remove=True,
    attr_timeout=1,
    entry_timeout=1,
)
