"""The table of every command: what it is called, where it lives, what it needs before it runs.

Owns the list that the dispatcher, the help pages, the manual, the completions and the contract tests read. A row exists
only when its module does; one row per line. This module is read on every start, so it imports nothing heavy.

A verb of a command (``workspace list``) is a row of its own whose name has two words: the module is named by the
first, the function in it is ``command_list``. A row with one word runs the module's ``command``.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Needs(Enum):
    """What the frame opens before a command runs."""

    NONE = "none"
    STORE = "store"
    STORE_WRITE = "store-write"
    WORKSPACE = "workspace"


class Role(Enum):
    """Whether people read a command's output (its prose may change) or scripts do (it may not)."""

    PORCELAIN = "porcelain"
    PLUMBING = "plumbing"


class Command(NamedTuple):
    """One row of the table."""

    name: str
    module: str
    group: str
    summary: str
    needs: Needs
    role: Role = Role.PORCELAIN
    nul: bool = False
    version: int = 1

    @property
    def schema(self) -> str:
        """The name of the JSON document the command prints."""
        return f"layerfs.{self.name.replace(' ', '-')}/{self.version}"

    @property
    def function(self) -> str:
        """The name of the function in the module."""
        _, _, verb = self.name.partition(" ")
        return f"command_{verb.replace('-', '_')}" if verb else "command"

    @property
    def page(self) -> str:
        """The name of the manual page, which verbs of one command share."""
        return f"layerfs-{self.name.partition(' ')[0]}"

    @property
    def lines(self) -> str:
        """The list of the document that ``--json-lines`` prints item by item; empty where there is no such option."""
        return _LINES.get(self.name, "")


_LINES = {
    "reflog": "moves",
    "status": "changes",
    "diff": "changes",
    "log": "commits",
    "cat-file": "objects",
    "ls-extents": "extents",
    "read-extent": "pieces",
    "ls-tree": "entries",
    "diff-tree": "changes",
    "rev-parse": "revisions",
    "rev-list": "commits",
    "ls-layers": "layers",
    "ls-pack": "objects",
}


NONE, STORE, WRITE, WORKSPACE = Needs.NONE, Needs.STORE, Needs.STORE_WRITE, Needs.WORKSPACE
PORCELAIN, PLUMBING = Role.PORCELAIN, Role.PLUMBING

GROUPS = (
    "start",
    "lines of work",
    "workspaces",
    "in a workspace",
    "history",
    "coming together",
    "other stores",
    "upkeep",
    "plumbing",
)

# name, module, group, summary, needs, role, nul (-z), schema version
COMMANDS: tuple[Command, ...] = (
    Command("init", "init", "start", "capture a directory as the first layer of a new store", NONE),
    Command("clone", "clone", "start", "copy a store, with all history, into a new one", NONE),
    Command("doctor", "doctor", "start", "show what this machine can do", NONE),
    Command("config list", "config", "start", "list the settings of a store", STORE),
    Command("config get", "config", "start", "print a setting", STORE),
    Command("config set", "config", "start", "set a setting", WRITE),
    Command("config unset", "config", "start", "take a setting back to its default", WRITE),
    Command("help", "help", "start", "show the manual page of a command or a topic", NONE),
    Command("fork", "fork", "lines of work", "make branches from any state, without copying", WRITE),
    Command("branch", "branch", "lines of work", "list, delete and rename branches", STORE),
    Command("branch reset", "branch", "lines of work", "move a branch to another state", WRITE),
    Command("tag", "tag", "lines of work", "list, make and delete tags", STORE),
    Command("layers", "layers", "lines of work", "list the layers of main", STORE),
    Command("reflog", "reflog", "lines of work", "show where names were before", STORE),
    Command("mount", "mount", "workspaces", "attach a state as a private, writable directory", WRITE),
    Command("unmount", "unmount", "workspaces", "take a workspace away", NONE),
    Command("run", "run", "workspaces", "run a command with a state at the captured path", WRITE),
    Command("shell", "shell", "workspaces", "a shell with a state at the captured path", WRITE),
    Command("warm", "warm", "workspaces", "put a state into the layer cache", WRITE),
    Command("workspace list", "workspace", "workspaces", "list workspaces and whether they are there", STORE),
    Command("workspace show", "workspace", "workspaces", "show all that is known of a workspace", NONE),
    Command("workspace remove", "workspace", "workspaces", "forget a workspace", NONE),
    Command("update", "update", "workspaces", "bring newer work into a workspace", WORKSPACE),
    Command(
        "status", "status", "in a workspace", "show what changed since the last commit", WORKSPACE, nul=True
    ),
    Command("commit", "commit", "in a workspace", "record the state of a workspace", WRITE),
    Command(
        "restore", "restore", "in a workspace", "make a workspace or paths equal to another state", WORKSPACE
    ),
    Command("diff", "diff", "history", "show the difference between two states", STORE, nul=True),
    Command("log", "log", "history", "show commits, newest first", STORE),
    Command("show", "show", "history", "show a commit with its patch, a layer, or a file", STORE, nul=True),
    Command("blame", "blame", "history", "show who wrote each line of a file", STORE),
    Command(
        "conflicts",
        "conflicts",
        "coming together",
        "what an open merge has left to decide",
        WORKSPACE,
        nul=True,
    ),
    Command("resolve", "resolve", "coming together", "decide a path of an open merge", WORKSPACE),
    Command("merge", "merge", "coming together", "combine two lines of work", WRITE),
    Command("publish", "publish", "coming together", "add a branch's work to main as the next layer", WRITE),
    Command("fetch", "fetch", "other stores", "bring branches, tags and layers from another store", WRITE),
    Command("push", "push", "other stores", "send branches, tags and layers to another store", STORE),
    Command("checkout", "checkout", "upkeep", "write a state into a new directory", STORE),
    Command("repack", "repack", "upkeep", "put history into few packs that take much less room", WRITE),
    Command("stats", "stats", "upkeep", "show how big states and their history are", STORE),
    Command("fsck", "fsck", "upkeep", "check that everything is there and whole", NONE),
    Command("gc", "gc", "upkeep", "give back the room of what no name reaches any more", WRITE),
    Command("prune", "prune", "upkeep", "collect, shrink the layer cache and remove leftovers", WRITE),
    Command("purge", "purge", "upkeep", "take a path or a commit out of all history", WRITE),
    Command(
        "hash-object", "hash_object", "plumbing", "print the id of a file's content", NONE, PLUMBING, nul=True
    ),
    Command(
        "cat-file", "cat_file", "plumbing", "print an object, raw or readable", STORE, PLUMBING, nul=True
    ),
    Command("chunk-file", "chunk_file", "plumbing", "show how a file is cut into chunks", NONE, PLUMBING),
    Command("ls-extents", "ls_extents", "plumbing", "list the pieces of a stored file", STORE, PLUMBING),
    Command("read-extent", "read_extent", "plumbing", "print a range of a stored file", STORE, PLUMBING),
    Command(
        "splice-extent", "splice_extent", "plumbing", "change bytes inside a stored file", WRITE, PLUMBING
    ),
    Command("ls-tree", "ls_tree", "plumbing", "list a directory in a state", STORE, PLUMBING, nul=True),
    Command("write-tree", "write_tree", "plumbing", "capture a directory as a root object", WRITE, PLUMBING),
    Command("commit-tree", "commit_tree", "plumbing", "make a commit of a root object", WRITE, PLUMBING),
    Command("diff-tree", "diff_tree", "plumbing", "list the paths that differ", STORE, PLUMBING, nul=True),
    Command(
        "merge-base", "merge_base", "plumbing", "print the common ancestor of two commits", STORE, PLUMBING
    ),
    Command(
        "rev-parse", "rev_parse", "plumbing", "print the ids that revisions name", STORE, PLUMBING, nul=True
    ),
    Command(
        "rev-list",
        "rev_list",
        "plumbing",
        "list the commits that revisions select",
        STORE,
        PLUMBING,
        nul=True,
    ),
    Command(
        "show-ref",
        "show_ref",
        "plumbing",
        "list pointers and the commits they name",
        STORE,
        PLUMBING,
        nul=True,
    ),
    Command(
        "update-ref", "update_ref", "plumbing", "move refs by compare-and-set", WRITE, PLUMBING, nul=True
    ),
    Command(
        "ls-layers", "ls_layers", "plumbing", "list the layers of main for scripts", STORE, PLUMBING, nul=True
    ),
    Command("ls-pack", "ls_pack", "plumbing", "list packs, or what lies in one", STORE, PLUMBING),
    Command("verify-pack", "verify_pack", "plumbing", "check packs from first to last byte", STORE, PLUMBING),
    Command("count-objects", "count_objects", "plumbing", "count the objects of each kind", STORE, PLUMBING),
)

_BY_NAME = {row.name: row for row in COMMANDS}


def find_command(name: str) -> Command | None:
    """Return the row called ``name`` (one or two words), or None."""
    return _BY_NAME.get(name)


def verbs_of(name: str) -> tuple[Command, ...]:
    """Return the rows that are verbs of ``name``: the two-word names that begin with it."""
    return tuple(row for row in COMMANDS if row.name.startswith(name + " "))


def first_words() -> list[str]:
    """Return every word that may follow ``layerfs``, in the order of the table."""
    return list(dict.fromkeys(row.name.partition(" ")[0] for row in COMMANDS))
