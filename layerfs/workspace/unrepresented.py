"""What a user's workspace cannot hold and so must not lose: devices, and attributes that only root can set or see.

A directory written without root has no device nodes and no file capabilities, though nobody removed them. When its state
is taken they are put back from the state before, like the owners of unchanged files (``capture``) and like everything of
an overlay in a user namespace (``upper``). Who really wants them gone removes the directory around them, or is root.
"""

from __future__ import annotations

from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import diff_trees, edit_paths, lookup_path, split
from layerfs.objects.source import ObjectStore

_DEVICES = (EntryKind.CHARDEV, EntryKind.BLOCKDEV)
_OWN = (b"user.", b"system.")
_HIDDEN = (b"trusted.",)


def keep_unrepresented(objects: ObjectStore, base: Entry, root: Entry, *, written: bool) -> Entry:
    """Return ``root`` with what a caller without root could not have changed as ``base`` has it.

    ``written`` says that the directory was written without root. Otherwise, as in a captured directory, only attributes
    that the kernel hides from users are kept.
    """
    edits: dict[bytes, Entry | None] = {}
    for change in diff_trees(objects, base, root):
        old, new = change.old, change.new
        if old is None:
            continue
        if new is None:
            if written and old.kind in _DEVICES and _is_directory(objects, root, split(change.path)[0]):
                edits[change.path] = old
        elif new.kind is old.kind:
            held = {name for name, _ in new.xattrs}
            kept = [item for item in old.xattrs if item[0] not in held and _is_out_of_reach(item[0], written)]
            if kept:
                ref = b"" if new.kind is EntryKind.DIR else new.ref
                edits[change.path] = new._replace(xattrs=tuple(sorted((*new.xattrs, *kept))), ref=ref)
    return edit_paths(objects, root, edits) if edits else root


def _is_out_of_reach(name: bytes, written: bool) -> bool:
    return not name.startswith(_OWN) if written else name.startswith(_HIDDEN)


def _is_directory(objects: ObjectStore, root: Entry, path: bytes) -> bool:
    entry = lookup_path(objects, root, path)
    return entry is not None and entry.kind is EntryKind.DIR
