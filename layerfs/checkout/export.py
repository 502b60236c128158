"""Export: a commit's whole state as a plain directory. What writes it is ``checkout``; this decides where and as whom.

The directory is either the whole state or what it was before: after an error, or when the user stops it, what was
written is removed again. Only a kill that nothing can catch leaves a part, private to its owner, and the next attempt
refuses a directory that holds something.
"""

from __future__ import annotations

import os
import stat

from layerfs.checkout.checkout import create_into
from layerfs.checkout.restored import Restored
from layerfs.checkout.target import open_target
from layerfs.errors import Refused, quote
from layerfs.history.history import CommitReader
from layerfs.ids import CommitId
from layerfs.progress import SILENT, Progress
from layerfs.store.layout import is_inside
from layerfs.store.places import empty_directory
from layerfs.store.store import Store


def export_commit(store: Store, commit: CommitId, target: bytes, progress: Progress = SILENT) -> Restored:
    """Write a commit's state into ``target`` (absolute), a new or empty directory outside of the store."""
    if is_inside(os.path.realpath(target), os.path.realpath(store.path)):
        raise Refused(f"{quote(target)} lies inside the store", "name a directory outside of it")
    root = CommitReader(store.objects).root(commit)
    progress.phase("checking out")
    directory, new = open_target(target)
    try:
        mode = stat.S_IMODE(os.fstat(directory).st_mode)
        try:
            return create_into(store.objects, directory, root, owners=os.geteuid() == 0, progress=progress)
        except BaseException:
            os.fchmod(directory, mode)
            empty_directory(directory)
            if new:
                os.rmdir(target)
            raise
    finally:
        os.close(directory)
