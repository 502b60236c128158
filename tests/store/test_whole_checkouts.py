"""Writing a whole state out: the same whichever way it is read and written, each frame decoded once, all or nothing."""

from __future__ import annotations

import errno
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from odd_tree import build_odd_tree, describe

from layerfs.capture.initialise import initialise
from layerfs.checkout import filling
from layerfs.checkout.export import export_commit
from layerfs.errors import StoreDamaged
from layerfs.history.authorship import Author
from layerfs.history.revision import resolve
from layerfs.kernels import native
from layerfs.objects.database import ObjectDatabase
from layerfs.store.store import Store
from layerfs.upkeep.repack import RepackOptions, repack

AUTHOR = Author("Test", 1_700_000_000_000_000_000, 0)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Every oddity, and enough small, equal, empty, linked and large files for many frames."""
    top = tmp_path / "source"
    top.mkdir()
    build_odd_tree(top, root=os.geteuid() == 0)
    for number in range(40):
        place = top / f"part-{number % 7}" / f"{number}"
        place.mkdir(parents=True)
        for each in range(12):
            (place / f"file-{each}").write_bytes(
                os.urandom(9000) if each % 3 else b"equal %d\n" % (number % 5)
            )
        (place / "empty").touch()
        os.link(place / "file-1", place.parent / f"linked-{number}")
    common = os.urandom(1_500_000)
    (top / "large one").write_bytes(common + os.urandom(200_000))
    (top / "large two").write_bytes(common + bytes(300_000) + common[:400_000])
    return top


@pytest.fixture
def store(source: Path, tmp_path: Path) -> Iterator[Store]:
    path = os.fsencode(tmp_path / "store")
    initialise(os.fsencode(source), path, AUTHOR, clock=lambda: AUTHOR.time_ns)
    (source / ".layerfs").unlink(missing_ok=True)
    with Store.open(path, clock=lambda: AUTHOR.time_ns) as opened:
        yield opened


def export(store: Store, target: Path) -> None:
    assert export_commit(store, resolve(store, "main").commit, os.fsencode(target)).complete


@pytest.mark.parametrize("waiting", [1, 7, 100_000])
@pytest.mark.parametrize("kernel", [True, False])
def test_it_equals_what_was_captured(
    store: Store, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int, kernel: bool
) -> None:
    monkeypatch.setattr(filling, "MOST_WAITING", waiting)
    before = native.available()
    if kernel and not before:
        pytest.skip("the native kernels are not built")
    native.select(kernel=kernel)
    try:
        export(store, tmp_path / "target")
    finally:
        native.select(kernel=before)
    found, expected = describe(tmp_path / "target"), describe(source)
    found.pop(b""), expected.pop(b"")
    assert found == expected


def test_it_is_the_same_after_a_repack(store: Store, source: Path, tmp_path: Path) -> None:
    repack(store, RepackOptions())
    export(store, tmp_path / "target")
    found, expected = describe(tmp_path / "target"), describe(source)
    found.pop(b""), expected.pop(b"")
    assert found == expected


def test_each_frame_of_contents_is_decoded_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: Counter[tuple[int, int]] = Counter()
    original = ObjectDatabase._read_frame

    def counted(self: ObjectDatabase, pack: int, offset: int) -> object:
        decoded[pack, offset] += 1
        return original(self, pack, offset)

    monkeypatch.setattr(ObjectDatabase, "_read_frame", counted)
    export(store, tmp_path / "target")
    assert len(decoded) > 5
    # Trees may share a small frame with contents; nothing is read a third time.
    again = [at for at, times in decoded.items() if times > 1]
    assert len(again) <= 1 and max(decoded.values()) <= 2, decoded


@pytest.mark.parametrize("existed", [True, False])
def test_an_interruption_leaves_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    calls = 0
    original = native.write_files

    def interrupted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise KeyboardInterrupt
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(native, "write_files", interrupted)
    target = tmp_path / "target"
    if existed:
        target.mkdir()
    with pytest.raises(KeyboardInterrupt):
        export(store, target)
    assert os.path.lexists(target) == existed
    if existed:
        assert os.listdir(target) == []


def test_damage_is_found_before_it_is_written(store: Store, tmp_path: Path) -> None:
    pack = max((tmp_path / "store" / "packs").glob("*.pack"), key=lambda path: path.stat().st_size)
    with open(pack, "r+b") as file:
        file.seek(pack.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes((byte[0] ^ 1,)))
    target = tmp_path / "target"
    with pytest.raises(StoreDamaged, match="pack"):
        export(store, target)
    assert not target.exists()


def test_a_target_that_fills_up_is_taken_away_again(
    store: Store, tmp_path: Path, need_root_mounts: None
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", small], check=True, timeout=20)
    try:
        (small / "mine").write_bytes(b"stays")
        with pytest.raises(OSError, match="No space left on device") as caught:
            export(store, small / "target")
        assert caught.value.errno == errno.ENOSPC and caught.value.filename
        assert [each.name for each in small.iterdir()] == ["mine"]
    finally:
        subprocess.run(["umount", small], check=True, timeout=20)
