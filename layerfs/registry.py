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


NONE, STORE, WRITE, WORKSPACE = Needs.NONE, Needs.STORE, Needs.STORE_WRITE, Needs.WORKSPACE
PORCELAIN, PLUMBING = Role.PORCELAIN, Role.PLUMBING

GROUPS = (
    "start",
    "lines of work",
    "workspaces",
    "in a workspace",
    "history",
    "coming together",
    "upkeep",
    "plumbing",
)

# name, module, group, summary, needs, role, nul (-z), schema version
COMMANDS: tuple[Command, ...] = (
    Command("init", "init", "start", "capture a directory as the first layer of a new store", NONE),
    Command("help", "help", "start", "show the manual page of a command or a topic", NONE),
    Command("mount", "mount", "workspaces", "attach a state as a private, writable directory", WRITE),
    Command("unmount", "unmount", "workspaces", "take a workspace away", WRITE),
    Command("workspace list", "workspace", "workspaces", "list workspaces and whether they are there", STORE),
    Command("workspace show", "workspace", "workspaces", "show all that is known of a workspace", STORE),
    Command("workspace remove", "workspace", "workspaces", "forget a workspace", WRITE),
    Command("update", "update", "workspaces", "bring newer work into a workspace", WORKSPACE),
    Command("status", "status", "in a workspace", "show what changed since the last commit", WORKSPACE, nul=True),
    Command("commit", "commit", "in a workspace", "record the state of a workspace", WORKSPACE),
    Command("restore", "restore", "in a workspace", "make a workspace or paths equal to another state", WORKSPACE),
    Command("merge", "merge", "coming together", "combine two lines of work", WRITE),
    Command("publish", "publish", "coming together", "add a branch's work to main as the next layer", WRITE),
    Command("checkout", "checkout", "upkeep", "write a state into a new directory", STORE),
    Command("show-ref", "show_ref", "plumbing", "list pointers and the commits they name", STORE, PLUMBING, nul=True),
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
