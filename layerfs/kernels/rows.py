"""Directory rows: what one scan of a directory says about each entry, and the packed form it is compared in.

Owns the row layout, and the shapes of what the native kernels take and give. A scan is one blob of rows sorted by
name bytes; it holds nothing that reading changes (no access time, no block count), so an unchanged directory scans to
the same bytes and a cache may compare blobs without decoding them. Scanning and decoding themselves are in ``native``.

One row, little-endian, no padding, directly followed by the next:

====== ===== ============================================
offset type  field
====== ===== ============================================
0      u16   length of the name in bytes (1..65535)
2      u16   reserved, 0
4      u32   mode, the whole ``st_mode``
8      u32   uid
12     u32   gid
16     u32   nlink
20     u32   major number of the device holding the entry
24     u32   minor number of the same
28     u32   major number of the device the entry *is* (else 0)
32     u32   minor number of the same
36     u64   size
44     u64   inode number
52     i64   mtime, whole seconds
60     i64   ctime, whole seconds
68     u32   mtime, nanoseconds
72     u32   ctime, nanoseconds
76     bytes the name
====== ===== ============================================
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

ROW_HEADER = Struct("<HHIIIIIIIIQQqqII")


class Row(NamedTuple):
    """One entry of a directory; ``dev`` and ``rdev`` are packed as by :func:`os.makedev`, times are ns."""

    name: bytes
    mode: int
    uid: int
    gid: int
    nlink: int
    dev: int
    rdev: int
    size: int
    ino: int
    mtime_ns: int
    ctime_ns: int


class IndexLayout(NamedTuple):
    """Where the parts of a pack index begin, how many objects and frames it lists, and the form of a place.

    The last four are the bytes of a place and how many of its bits hold the start, the length and the frame's number.
    """

    fanout: int
    prefixes: int
    places: int
    offsets: int
    objects: int
    frames: int
    wide: int
    start_bits: int
    length_bits: int
    frame_bits: int


class FileRead(NamedTuple):
    """The outcome of reading one small file; exactly one of these four cases.

    * ``data`` is bytes: the whole content, and nothing moved while it was read (``stable``, ``errno == 0``).
    * ``errno > 0``: the file could not be read (``EFBIG``: it is larger than the limit asked for).
    * ``errno == NOT_REGULAR`` (-1): the name is not a regular file.
    * ``stable`` is false (``errno == 0``, no data): size, mtime or ctime moved during the read; try again.

    The five fields from ``size`` on are from the second ``fstat`` (the only one if the content was not read; zero if the
    open failed). ``has_xattrs`` is false only if the content was read and the file has no extended attributes.
    """

    data: bytes | None
    errno: int
    stable: bool
    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int
    mode: int
    has_xattrs: bool = True


NOT_REGULAR = -1


class FileFault(NamedTuple):
    """What went wrong with one file that was to be written: its number in the batch, the step, and the errno.

    After ``CREATE``, ``WRITE`` and ``TIMES`` there is no such file and nothing later of the batch was tried. The other
    steps leave a whole file that lacks its owner, its mode, or the attribute named ``xattr``.
    """

    number: int
    step: int
    errno: int
    xattr: bytes | None


CREATE, WRITE, OWNER, XATTR, MODE, TIMES = range(6)
