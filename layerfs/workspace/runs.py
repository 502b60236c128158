"""Runs: a command with a workspace mounted at the path the environment was captured from.

Every run has its own workspace in a mount namespace of its own, so absolute paths in virtualenvs, caches and editors lead
into it and nothing outside sees it. Afterwards: unchanged, it is removed; with ``commit`` its state is committed, also
when the command failed, with the command, its exit code and duration as provenance; changed otherwise, it is kept under
its name for ``run --in`` or ``mount``, unless ``discard``.

Without root the overlay is made in a user namespace. Where no overlay can be made, the run gets a copy that is bound over
the path. Where nothing can be mounted at all, it runs in the copy where that lies, but only if the state has no absolute
references into the captured path (``references``): with them the command would silently use the original environment.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from layerfs.errors import NotFound, Refused, Unable, quote
from layerfs.history.authorship import Author
from layerfs.history.history import CommitReader
from layerfs.history.revision import Revision
from layerfs.ids import CommitId
from layerfs.progress import SILENT, Progress
from layerfs.store.layout import POINTER, moved_root
from layerfs.store.places import (
    UPPER,
    WORK,
    make_workspace_directory,
    upper_directory,
    work_directory,
    workspace_directory,
)
from layerfs.store.store import Store
from layerfs.store.workspacerecords import (
    Engine,
    WorkspaceRecord,
    find_workspace,
    read_workspace,
    workspace_at,
)
from layerfs.workspace.attach import (
    drop_record,
    is_alive,
    mount_name,
    on_its_lower,
    prepare_upper,
    put_record,
    workspace_name,
)
from layerfs.workspace.cacheupkeep import keep_bound
from layerfs.workspace.claims import RUN_LOCK, claim_name, hold, refuse_running, using
from layerfs.workspace.commit import check_branch, commit_workspace
from layerfs.workspace.copies import copy_out, restored_notes
from layerfs.workspace.detach import settle_upper, uncommitted
from layerfs.workspace.layercache import boot_id, ensure_stack, flavour_of, layer_path
from layerfs.workspace.namespace import Place
from layerfs.workspace.overlay import Layers, reset_work
from layerfs.workspace.overlayprobe import forget, why_no_namespace, why_not, why_not_in_namespace
from layerfs.workspace.recording import CommitRequest, Committed
from layerfs.workspace.references import find_references
from layerfs.workspace.supervise import Command, start

COPY = b"copy"
TIMED_OUT = 124
GIT_SETTINGS = (("core.checkStat", "minimal"), ("core.trustctime", "false"))


class RunRequest(NamedTuple):
    """What to run and what to do with its changes.

    ``revision`` gives a new workspace, ``inside`` names a kept one. ``env`` and ``directory`` are the caller's.
    ``elsewhere`` has it run in a plain copy that nothing is mounted for, whatever absolute references there are.
    """

    argv: Sequence[bytes]
    env: Mapping[bytes, bytes]
    directory: bytes
    author: Author
    revision: Revision | None = None
    inside: str | None = None
    commit: CommitRequest | None = None
    discard: bool = False
    timeout: float | None = None
    pass_through: tuple[bytes, ...] = ()
    elsewhere: bool = False
    stdout: int | None = None
    """Where the command's standard output goes, if not to the caller's own."""


class Ran(NamedTuple):
    """How a run ended: the command's own code, and what became of its workspace."""

    code: int
    workspace: str
    changed: int
    committed: Committed | None
    kept: bool
    notes: tuple[str, ...] = ()


def _refuse_moved(store: Store, source: bytes, directory: bytes) -> None:
    """Refuse to run from a moved or copied tree: the command would work on that, and not on the workspace."""
    moved = moved_root(store.path, source, directory)
    if moved is not None and workspace_at(store.refs, os.path.realpath(directory)) is None:
        raise Refused(
            f"{quote(moved)} was moved or copied from {quote(source)}, where the workspace would be mounted",
            f"run from there; to capture it anew, delete {quote(os.path.join(moved, POINTER))} first",
        )


def run_command(store: Store, request: RunRequest, progress: Progress = SILENT) -> Ran:
    """Run a command; raises Unable when no workspace can be put at the captured path."""
    source = store.format.source
    if source is None:
        raise Unable("this store was made without a captured directory", "use 'layerfs mount REV DIR'")
    notes: list[str] = []
    _check_commit(store, request)
    _refuse_moved(store, source, request.directory)
    with ExitStack() as held:
        if request.inside is not None:
            with hold(store, read_workspace(store.refs, request.inside).name):
                record = _reopen(store, request, progress, held)
        else:
            assert request.revision is not None
            record = _open(store, request, request.revision, progress, notes, held)
        lock = os.path.join(workspace_directory(store, record.name), RUN_LOCK)
        env = run_environment(request.env, store.path, record.name)
        command = Command(tuple(request.argv), env, request.directory, lock, request.stdout)
        began = time.monotonic_ns()
        try:
            running = start(_place(store, record, source, request, notes), command)
        except BaseException:
            forget(store.path)
            if request.inside is None:
                drop_record(store, record, request.author)
            raise
    notes += [f"layerfs: {quote(path)} is not visible inside the workspace" for path in running.entered.lost]
    if running.problem is not None:
        notes.append(f"layerfs: {running.problem}")
    outcome = running.wait(request.timeout)
    duration = time.monotonic_ns() - began
    code = TIMED_OUT if outcome.timed_out else outcome.code
    if outcome.timed_out:
        notes.append(f"layerfs: time was up after {request.timeout:g} s; everything it started was ended")
    if outcome.left_running:
        pids = ", ".join(str(pid) for pid in outcome.left_running)
        notes.append(f"layerfs: processes still run in the workspace, which is kept: {pids}")
    return _settle(store, record.name, request, code, duration, bool(outcome.left_running), notes)


def _check_commit(store: Store, request: RunRequest) -> None:
    """Refuse a commit that cannot be made before anything runs, not after."""
    if request.commit is None:
        return
    if request.inside is not None:
        check_branch(store, read_workspace(store.refs, request.inside), request.commit.new_branch)
    elif (
        request.revision is not None and request.commit.new_branch is None and request.revision.branch is None
    ):
        raise Refused(
            f"{quote(request.revision.text)} is no branch, so nothing can be committed to it",
            "--as NEW commits to a new branch",
        )
    elif request.commit.new_branch is not None and store.refs.head(request.commit.new_branch) is not None:
        raise Refused(f"branch {quote(request.commit.new_branch)} exists already", "choose another name")


def run_environment(env: Mapping[bytes, bytes], store: bytes, workspace: str) -> dict[bytes, bytes]:
    """Return the environment of a command in a workspace.

    It names store and workspace, and tells Git to compare files by size and time only: a copied-up file has another inode
    and change time than Git's index remembers, and Git would read every tracked file again for it.
    """
    result = {**env, b"LAYERFS_STORE": store, b"LAYERFS_WORKSPACE": os.fsencode(workspace)}
    given = result.get(b"GIT_CONFIG_COUNT", b"0")
    if given.isdigit():
        count = int(given)
        for number, (key, value) in enumerate(GIT_SETTINGS, count):
            result[b"GIT_CONFIG_KEY_%d" % number] = key.encode()
            result[b"GIT_CONFIG_VALUE_%d" % number] = value.encode()
        result[b"GIT_CONFIG_COUNT"] = b"%d" % (count + len(GIT_SETTINGS))
    return result


def _open(
    store: Store,
    request: RunRequest,
    revision: Revision,
    progress: Progress,
    notes: list[str],
    held: ExitStack,
) -> WorkspaceRecord:
    """Make a new private workspace with the best engine there is; its lock goes to ``held``."""
    with claim_name(store, workspace_name(revision)) as name:
        held.enter_context(using(store, name))
        return _open_as(store, name, request, revision, progress, notes)


def _open_as(
    store: Store, name: str, request: RunRequest, revision: Revision, progress: Progress, notes: list[str]
) -> WorkspaceRecord:
    userns = os.geteuid() != 0
    reason = why_not_in_namespace(store.path) if userns else why_not(store.path)
    record = WorkspaceRecord(
        name,
        revision.branch or "",
        Engine.OVERLAY,
        b"",
        revision.commit,
        revision.commit,
        request.author.time_ns,
        ephemeral=True,
        boot_id=boot_id(),
        pid=os.getpid(),
        userxattr=userns,
    )
    if request.elsewhere:
        reason = "the workspace is not to be at the captured path"
    if reason is None:
        try:
            stack = ensure_stack(
                store, revision.commit, request.author.time_ns, progress, flavour=flavour_of(userns)
            )
        except Unable as error:
            reason = error.message
        else:
            make_workspace_directory(store, name, UPPER, WORK)
            record = record._replace(layers=stack.names)
            put_record(store, record, request.author)
            if userns:
                notes += _owner_notes(CommitReader(store.objects).root(record.last).uid)
            return record
    _is_elsewhere(store, revision.commit, request, [])
    notes.append(f"layerfs: using engine copy: {reason}")
    return _open_copy(store, record, request, progress, notes)


def _owner_notes(uid: int) -> list[str]:
    """Say once whose files these are in commits, to a user who owns all of them in the workspace."""
    if uid == os.geteuid():
        return []
    return [
        f"layerfs: files belong to you inside; those you leave unchanged keep their owners (uid {uid}) in commits"
    ]


def _is_elsewhere(store: Store, commit: CommitId, request: RunRequest, notes: list[str]) -> bool:
    """Whether a directory cannot be bound over the captured path, so that the command runs where it lies.

    Raises Unable if the command would then use the original without knowing, and was not told to.
    """
    if request.elsewhere:
        reason = None
    else:
        reason = why_no_namespace()
        if reason is None:
            return False
    source = quote(store.format.source or b"")
    if request.pass_through:
        raise Unable("--pass-through needs the workspace at the captured path", "leave it out")
    into = find_references(store, commit).into
    if into and reason is not None:
        raise Unable(
            f"the workspace cannot be put at {source}: {reason}; "
            f"{quote(into[0].path)} and {len(into) - 1} more would lead to the original",
            "--no-at-source runs in a copy elsewhere all the same",
        )
    why = f": {reason}" if reason is not None else ""
    notes.append(f"layerfs: the command runs in a copy elsewhere, not at {source}{why}")
    if into:
        notes.append(
            f"layerfs: {len(into)} absolute references lead to the original, as that of {quote(into[0].path)}"
        )
    return True


def _open_copy(
    store: Store, record: WorkspaceRecord, request: RunRequest, progress: Progress, notes: list[str]
) -> WorkspaceRecord:
    directory = os.path.join(make_workspace_directory(store, record.name, COPY), COPY)
    restored = copy_out(store, record.last, directory, progress)
    notes += restored_notes(restored)
    record = record._replace(engine=Engine.COPY, path=directory)
    put_record(store, record, request.author)
    return record


def _reopen(store: Store, request: RunRequest, progress: Progress, held: ExitStack) -> WorkspaceRecord:
    """Return a kept workspace, ready to be entered again; its lock goes to ``held``."""
    record = read_workspace(store.refs, request.inside or "")
    if record.engine is Engine.SOURCE:
        raise Refused("the captured directory itself needs no run", "just run the command there")
    refuse_running(store, record)
    held.enter_context(using(store, record.name))
    if record.engine is Engine.OVERLAY and not (record.path and record.attached and is_alive(store, record)):
        if os.geteuid() != 0 and not record.userxattr:
            raise Unable(
                f"workspace {quote(record.name)} was made by root", "'layerfs run --in' works as root"
            )
        flavour = flavour_of(record.userxattr)
        record = on_its_lower(store, record)
        stack = ensure_stack(store, record.lower, request.author.time_ns, progress, flavour=flavour)
        make_workspace_directory(store, record.name, UPPER, WORK)
        reset_work(work_directory(store, record.name))
        record = record._replace(
            path=b"", layers=stack.names, boot_id=boot_id(), pid=os.getpid(), attached=True
        )
        put_record(store, record, request.author)
    return record


def _place(
    store: Store, record: WorkspaceRecord, source: bytes, request: RunRequest, notes: list[str]
) -> Place:
    name = mount_name(store, record)
    if record.engine is Engine.COPY or record.path:
        if not os.path.isdir(record.path):
            raise NotFound(
                f"workspace {quote(record.name)} is not attached", f"'layerfs mount {record.name}' heals it"
            )
        return Place(
            source,
            name,
            bound=record.path,
            userns=os.geteuid() != 0,
            pass_through=request.pass_through,
            elsewhere=_is_elsewhere(store, record.last, request, notes),
        )
    if request.elsewhere:
        raise Unable(
            f"workspace {quote(record.name)} has engine overlay and is only seen at the captured path",
            "leave --no-at-source out",
        )
    prepare_upper(store, record)
    lowers = tuple(layer_path(store, name) for name in record.layers)
    layers = Layers(lowers, upper_directory(store, record.name), work_directory(store, record.name))
    return Place(
        source,
        name,
        layers=layers,
        userns=os.geteuid() != 0,
        userxattr=record.userxattr,
        pass_through=request.pass_through,
    )


def _settle(
    store: Store,
    name: str,
    request: RunRequest,
    code: int,
    duration_ns: int,
    busy: bool,
    notes: list[str],
) -> Ran:
    """Decide what becomes of the workspace once the command has ended."""
    record = find_workspace(store.refs, name)
    if record is None:
        return Ran(code, name, 0, None, False, tuple(notes))
    committed: Committed | None = None
    if request.commit is not None:
        about = {
            **request.commit.provenance,
            "command": shlex.join(os.fsdecode(word) for word in request.argv),
            "cwd": os.fsdecode(request.directory),
            "exit-code": str(code),
            "duration-ns": str(duration_ns),
        }
        message = request.commit.message or f"run: {about['command']}"
        committed = commit_workspace(
            store, record, request.commit._replace(provenance=about, message=message)
        )
        record = find_workspace(store.refs, name) or record
    changed = 0 if request.discard else uncommitted(store, record)[0]
    mounted = bool(record.path) and record.engine is Engine.OVERLAY
    if busy or mounted or changed:
        if not mounted and not busy:
            put_record(store, record._replace(attached=record.engine is Engine.COPY, pid=0), request.author)
        if changed and not mounted:
            notes.append(
                f"layerfs: uncommitted changes ({changed}) are kept in workspace '{name}': "
                f"'layerfs run --in {name} -- CMD' goes on there, 'layerfs workspace remove {name} --discard' drops them"
            )
        return Ran(code, name, changed, committed, True, tuple(notes))
    if record.engine is Engine.OVERLAY and not request.discard:
        settle_upper(store, record, request.author)
    drop_record(store, record, request.author)
    keep_bound(store, request.author.time_ns)
    return Ran(code, name, changed, committed, False, tuple(notes))
