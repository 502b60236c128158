"""What a failed checkout takes back: all of its own, whatever modes that has by then, and nothing of others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from layerfs.checkout import target
from layerfs.errors import Refused
from layerfs.store.places import empty_directory

NOBODY = 65534


def test_directories_that_are_read_only_already_are_emptied_by_their_owner(tmp_path: Path) -> None:
    top = tmp_path / "top"
    deep = top / "read only" / "closed"
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"x")
    (deep.parent / "file").write_bytes(b"x")
    deep.chmod(0)
    deep.parent.chmod(0o555)
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    child = os.fork()
    if not child:
        status = 1
        try:
            if not os.geteuid():
                for path in (top, deep.parent, deep):
                    os.chown(path, NOBODY, NOBODY)
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            empty_directory(fd)
            status = 0
        finally:
            os._exit(status)
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.listdir(top) == []


@pytest.mark.parametrize("link", [True, False])
def test_a_target_that_was_swapped_for_somebody_elses_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    """Whoever owns the directory above can do that between two looks; the cleaning up would empty it."""
    (tmp_path / "mine" / "out").mkdir(parents=True)
    (tmp_path / "mine" / "out" / "precious").write_bytes(b"kept")
    above = tmp_path / "above"
    above.mkdir()
    prepare = target.prepare_target

    def swapped(path: bytes) -> bool:
        new = prepare(path)
        above.rename(tmp_path / "moved")
        if link:
            above.symlink_to(tmp_path / "mine")
        else:
            (tmp_path / "mine").rename(above)
        return new

    monkeypatch.setattr(target, "prepare_target", swapped)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Refused, match="not empty"):
        target.open_target(os.fsencode(above / "out"))
    assert (above / "out" / "precious").read_bytes() == b"kept"
    assert len(os.listdir("/proc/self/fd")) == before
