"""Where stores are: the default place, the pointer file, and which store belongs to a directory.

Owns the order in which a command finds its store. Paths here are absolute byte paths. Nothing is opened for writing; what
is inside a store belongs to ``store``, what its ``format`` file says to ``storeformat``.

A captured root holds a one-line pointer file that names its store. If it is deleted, the stores under
``$XDG_DATA_HOME/layerfs`` are asked which of them was captured from the place, so the path still finds its store.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from layerfs.context import Context
from layerfs.errors import LayerfsError, NotAStore, Refused, Unable, quote

POINTER = b".layerfs"
FORMAT = b"format"
WORKSPACES = b"workspaces"
MOUNTS = b"mnt"

_MAX_POINTER = 8192
_MOUNT_TABLE = b"/proc/self/mountinfo"


def stores_directory(context: Context) -> bytes:
    """Return the directory in which stores are made by default."""
    return os.path.join(context.data_home(), b"layerfs")


def default_store_path(context: Context, source: bytes) -> bytes:
    """Return where the store of ``source`` goes by default: its name, and eight digits that stand for its path."""
    name = os.path.basename(source.rstrip(b"/")) or b"root"
    if len(name) > 100:
        name = name[:100]
    path = os.path.join(stores_directory(context), name.lstrip(b".-") + b"-" + _path_digits(source))
    if is_inside(path, source):
        raise Unable(
            f"the default place for the store, {quote(path)}, is inside the directory to capture",
            "name another place with --store PATH",
        )
    return path


def _path_digits(source: bytes) -> bytes:
    from blake3 import blake3

    return blake3(source).hexdigest()[:8].encode("ascii")


def is_inside(path: bytes, directory: bytes) -> bool:
    """Say whether ``path`` is ``directory`` or lies below it, by name."""
    return path == directory or path.startswith(directory.rstrip(b"/") + b"/")


def ancestors(path: bytes) -> Iterator[bytes]:
    """Yield ``path`` and every directory above it, up to the root."""
    while True:
        yield path
        parent = os.path.dirname(path)
        if parent == path:
            return
        path = parent


def find_store(context: Context, option: str | None) -> bytes:
    """Return the store a command works on.

    In this order: ``--store``; ``LAYERFS_STORE``; the nearest of the mounted workspace the caller stands in and the
    pointer file upwards from the working directory; the store that was captured from here.
    """
    for given, origin in ((option, "--store"), (context.env.get("LAYERFS_STORE"), "LAYERFS_STORE")):
        if given:
            return _checked(context.absolute(given), f"named by {origin}")
    found = _nearest(context.cwd)
    if found is None:
        found = find_store_of(context, context.cwd)
    if found is None:
        raise NotAStore(
            f"no store belongs to {quote(context.cwd)}",
            "capture a directory with 'layerfs init', or name a store with --store PATH",
        )
    return found


def _checked(path: bytes, origin: str) -> bytes:
    try:
        if stat.S_ISREG(os.stat(os.path.join(path, FORMAT)).st_mode):
            return path
    except PermissionError:
        raise Refused(
            f"cannot open store {quote(path)}: permission denied",
            "a store belongs to one user; be that user, or root",
        ) from None
    except (OSError, ValueError):
        pass
    problem = "not a layerfs store" if os.path.lexists(path) else "no such directory"
    raise NotAStore(f"cannot open store {quote(path)}: {problem}", f"the path is {origin}")


def _nearest(cwd: bytes) -> bytes | None:
    """Return the store named by what is nearest above ``cwd``: a workspace's mount point or a pointer file."""
    for directory in ancestors(cwd):
        pointer = read_pointer(directory)
        if pointer is None:
            if os.path.basename(directory) == MOUNTS and os.path.isfile(
                os.path.join(os.path.dirname(directory), FORMAT)
            ):
                return os.path.dirname(directory)
            continue
        mounted = _store_of_mount(cwd) if _on_other_device(cwd, directory) else None
        origin = f"named by the pointer file {quote(os.path.join(directory, POINTER))}"
        return mounted or _checked(pointer, origin)
    return _store_of_mount(cwd)


def _on_other_device(cwd: bytes, directory: bytes) -> bool:
    """Say whether a mount lies between the two, in which case the mount is the nearer one."""
    try:
        return os.stat(cwd).st_dev != os.stat(directory).st_dev
    except OSError:
        return False


def _store_of_mount(cwd: bytes) -> bytes | None:
    """Return the store whose workspace is mounted over ``cwd``: overlayfs names its upper, which lies in the store."""
    best = (b"", b"")
    try:
        with open(_MOUNT_TABLE, "rb") as table:
            for line in table:
                fields = line.split(b" ")
                place = _unescape(fields[4])
                if is_inside(cwd, place) and len(place) >= len(best[0]):
                    best = (place, line)
    except OSError:
        return None
    _, found, rest = best[1].partition(b"upperdir=")
    if not found:
        return None
    upper = _unescape(rest.split(b",")[0].split(b" ")[0])
    for directory in ancestors(upper):
        if os.path.basename(directory) == WORKSPACES:
            store = os.path.dirname(directory)
            return store if os.path.isfile(os.path.join(store, FORMAT)) else None
    return None


def _unescape(field: bytes) -> bytes:
    """Undo the octal escapes of the mount table."""
    if b"\\" not in field:
        return field
    parts = field.split(b"\\")
    return parts[0] + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in parts[1:])


def read_pointer(directory: bytes) -> bytes | None:
    """Return the store path in the pointer file of ``directory``, or None if there is no such file."""
    content = _read_small(os.path.join(directory, POINTER), _MAX_POINTER)
    if content is None:
        return None
    line = content.partition(b"\n")[0]
    if not line:
        return None
    return os.path.normpath(os.path.join(directory, line))


def moved_root(store: bytes, source: bytes | None, path: bytes) -> bytes | None:
    """Return the directory around ``path`` whose pointer file names the store though the store was captured elsewhere.

    It is the captured directory after it was moved, a copy of it, or a workspace that is a copy.
    """
    for directory in ancestors(path):
        pointer = read_pointer(directory)
        if pointer is None:
            continue
        if source is None or os.path.realpath(pointer) != os.path.realpath(store):
            return None
        return None if os.path.realpath(directory) == os.path.realpath(source) else directory
    return None


def find_store_of(context: Context, path: bytes) -> bytes | None:
    """Return the default-placed store that was captured from the nearest directory above ``path``, or None."""
    best: tuple[int, bytes] | None = None
    for store, source in _known_stores(context):
        if is_inside(path, source) and (best is None or len(source) > best[0]):
            best = (len(source), store)
    return best[1] if best else None


def _known_stores(context: Context) -> Iterator[tuple[bytes, bytes]]:
    """Yield (store, captured path) for every readable store in the default place."""
    from layerfs.store.storeformat import FORMAT_LIMIT, decode_format

    try:
        names = sorted(os.listdir(stores_directory(context)))
    except OSError:
        return
    for name in names:
        store = os.path.join(stores_directory(context), name)
        content = _read_small(os.path.join(store, FORMAT), FORMAT_LIMIT)
        if content is None:
            continue
        try:
            source = decode_format(content, store).source
        except LayerfsError:
            continue
        if source is not None:
            yield store, source


def _read_small(path: bytes, limit: int) -> bytes | None:
    """Return the content of a regular file of at most ``limit`` bytes, links not followed; None if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, limit)
    except OSError:
        return None
    finally:
        os.close(descriptor)
