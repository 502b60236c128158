"""The extended attributes in which overlayfs keeps what a plain directory cannot say.

Owns their names in both flavours – ``trusted.overlay.`` for mounts made by root, ``user.overlay.`` inside user
namespaces – and the rule by which user data of the same look is told apart: since Linux 6.7 an attribute that a program
sets as ``trusted.overlay.x`` on an overlay is stored as ``trusted.overlay.overlay.x``. Only the mount's own flavour
means something to the kernel; the other one is plain user data.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from layerfs.objects.entry import Xattrs

TRUSTED = b"trusted.overlay."
USER = b"user.overlay."
_ESCAPE = b"overlay."
_GONE = (errno.ENODATA, errno.EOPNOTSUPP)

OPAQUE = b"opaque"
REDIRECT = b"redirect"
METACOPY = b"metacopy"
WHITEOUT = b"whiteout"


class Attributes(NamedTuple):
    """The attributes of one upper entry, the overlay's own ones apart from the user's."""

    own: dict[bytes, bytes]
    user: Xattrs

    @property
    def opaque(self) -> bool:
        """A directory that hides the lower one of its name."""
        return self.own.get(OPAQUE) == b"y"

    @property
    def has_whiteout_files(self) -> bool:
        """A directory in which whiteouts may be empty files with an attribute instead of devices."""
        return self.own.get(OPAQUE) == b"x"


def prefix(userxattr: bool) -> bytes:
    """Return the prefix of the overlay's own attributes."""
    return USER if userxattr else TRUSTED


def handle(directory: int, name: bytes) -> bytes:
    """Return a path to an entry of an open directory for calls that have no ``at`` form and must not follow it."""
    return b"/proc/self/fd/%d/%s" % (directory, name)


def read_xattrs(target: bytes | int) -> list[tuple[bytes, bytes]]:
    """Return all extended attributes of a path (not followed) or descriptor, sorted by name.

    An attribute that goes between listing and reading is left out; a file system that has none gives an empty list.
    """
    follow = isinstance(target, int)
    found: list[tuple[bytes, bytes]] = []
    for text in sorted(os.listxattr(target, follow_symlinks=follow), key=os.fsencode):
        try:
            found.append((os.fsencode(text), os.getxattr(target, text, follow_symlinks=follow)))
        except OSError as error:
            if error.errno not in _GONE:
                raise
    return found


def split_xattrs(found: list[tuple[bytes, bytes]], flavour: bytes) -> Attributes:
    """Tell the overlay's attributes from the user's, and give the latter the names the user knows them by."""
    own: dict[bytes, bytes] = {}
    user: list[tuple[bytes, bytes]] = []
    for name, value in found:
        if not name.startswith(flavour):
            user.append((name, value))
        elif name.startswith(flavour + _ESCAPE):
            user.append((flavour + name[len(flavour) + len(_ESCAPE) :], value))
        else:
            own[name[len(flavour) :]] = value
    user.sort()
    return Attributes(own, tuple(user))


def read_attributes(target: bytes | int, flavour: bytes) -> Attributes:
    """Read and split in one go; the common entry without any attribute costs one system call."""
    found = read_xattrs(target)
    return split_xattrs(found, flavour) if found else _NONE


_NONE = Attributes({}, ())
