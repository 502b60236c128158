"""Export: a commit's whole state as a plain directory. What writes it is ``checkout``; this decides where and as whom."""

from __future__ import annotations

import os

from layerfs.checkout import create_into
from layerfs.errors import Refused, quote
from layerfs.history import CommitReader
from layerfs.ids import CommitId
from layerfs.layout import is_inside
from layerfs.progress import SILENT, Progress
from layerfs.restored import Restored
from layerfs.store import Store
from layerfs.target import prepare_target


def export_commit(store: Store, commit: CommitId, target: bytes, progress: Progress = SILENT) -> Restored:
    """Write a commit's state into ``target`` (absolute), a new or empty directory outside of the store."""
    if is_inside(os.path.realpath(target), os.path.realpath(store.path)):
        raise Refused(f"{quote(target)} lies inside the store", "name a directory outside of it")
    root = CommitReader(store.objects).root(commit)
    prepare_target(target)
    progress.phase("checking out")
    directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return create_into(store.objects, directory, root, owners=os.geteuid() == 0, progress=progress)
    finally:
        os.close(directory)
