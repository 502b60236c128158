"""Advice about git in a mounted workspace: that its first status will read every file, and how to have it not.

Git's index knows files by inode and change time, which no restored file can have. A run gives git settings that make it
look at sizes and times only; in a mount nobody's environment is ours, and the repository's own settings are the user's.
"""

from __future__ import annotations

from layerfs.history.history import CommitReader
from layerfs.objects.content import read_content
from layerfs.objects.entry import EntryKind
from layerfs.objects.environment import lookup_path
from layerfs.store.store import Store
from layerfs.store.workspacerecords import WorkspaceRecord

WORTH_SAYING = 1 << 20
"""The size of an index, some 15,000 files, from which on the first status takes long enough to be noticed."""


def git_notes(store: Store, record: WorkspaceRecord) -> list[str]:
    """Say for a state that is a large git repository how its first status becomes quick, unless it is."""
    reader = CommitReader(store.objects)
    root = reader.root(record.last)
    index = lookup_path(reader.source, root, b".git/index")
    if index is None or index.kind is not EntryKind.FILE or index.size < WORTH_SAYING:
        return []
    config = lookup_path(reader.source, root, b".git/config")
    is_file = config is not None and config.kind is EntryKind.FILE
    if config is not None and is_file and b"checkstat" in read_content(reader.source, config).lower():
        return []
    return [
        "layerfs: the first 'git status' here reads every file once; "
        "with 'git config core.checkStat minimal' and 'git config core.trustctime false' it reads none"
    ]
