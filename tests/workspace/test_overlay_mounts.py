"""Mounting and unmounting overlays: odd paths, many layers, the way of older kernels, busy mounts, volatile uppers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounting import SOURCE, Stand, mounted

from layerfs.errors import Refused, Unable
from layerfs.workspace import kernel, overlay
from layerfs.workspace.busy import MountBusy, find_holders
from layerfs.workspace.mountinfo import parse_mountinfo
from layerfs.workspace.overlay import (
    Layers,
    find_mount,
    is_mounted,
    mount_overlay,
    reset_work,
    unmount,
    was_volatile,
)


@pytest.fixture
def stand(tmp_path: Path, overlay_mounts: None) -> Stand:
    return Stand(os.fsencode(tmp_path))


@pytest.fixture(params=["lowerdir+", "option page"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to hand over layers: one by one, and in one page as kernels before 6.8 take them."""
    way: str = request.param
    if way == "option page":
        monkeypatch.setattr(overlay, "_can_append_lowers", lambda: False)
    return way


def layers_in(stand: Stand, top: bytes, count: int = 1) -> Layers:
    lowers = []
    for number in range(count):
        lower = stand.path(os.path.join(top, b"lower%d" % number))
        Path(os.fsdecode(lower), f"from-{number}").write_text(str(number))
        Path(os.fsdecode(lower), "same").write_text(str(number))
        lowers.append(lower)
    return Layers(tuple(lowers), stand.path(os.path.join(top, b"upper")), stand.path(os.path.join(top, b"work")))


def read(stand: Stand, name: str) -> str:
    return Path(os.fsdecode(stand.target), name).read_text()


@pytest.mark.parametrize(
    "name",
    [b"plain", b"a:b", b"a,b", b"back\\slash", b"\xff\xfe", b"space and\ttab\nline", b"x" * 200 + b"/" + b"y" * 200],
    ids=["plain", "colon", "comma", "backslash", "bytes", "space", "long"],
)
def test_paths_mean_nothing_special(stand: Stand, each_way: str, name: bytes) -> None:
    with mounted(layers_in(stand, name, 2), stand.target):
        assert (read(stand, "same"), read(stand, "from-1")) == ("0", "1")
        Path(os.fsdecode(stand.target), "new").write_text("x")
    assert os.path.exists(os.path.join(stand.top, name, b"upper", b"new"))


@pytest.mark.parametrize("name", [b"a:b,c\\d", b"space and\ttab\nline", b"\xff"])
def test_targets_mean_nothing_special(stand: Stand, each_way: str, name: bytes) -> None:
    target = stand.path(name)
    mount_overlay(layers_in(stand, b"x"), target, source=SOURCE)
    assert is_mounted(target, SOURCE)
    unmount(target, SOURCE)
    assert not is_mounted(target, SOURCE)


@pytest.mark.parametrize("count", [2, 61, 150])
def test_many_layers(stand: Stand, each_way: str, count: int) -> None:
    deep = b"d" * 100
    with mounted(layers_in(stand, deep, count), stand.target):
        assert read(stand, "same") == "0"
        assert read(stand, f"from-{count - 1}") == str(count - 1)


def test_more_layers_than_a_page_holds_are_refused_by_name(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = layers_in(stand, b"x", 300)
    with mounted(layers, stand.target):
        assert read(stand, "from-299") == "299"
    monkeypatch.setattr(overlay, "_can_append_lowers", lambda: False)
    with pytest.raises(Unable, match="cannot stack 300 layers"):
        mount_overlay(layers, stand.target, source=SOURCE)


def test_every_option_is_in_force(stand: Stand, each_way: str) -> None:
    with mounted(layers_in(stand, b"x"), stand.target):
        mount = find_mount(stand.target, SOURCE)
        assert mount is not None
        options = mount.super_options.split(b",")
        assert {b"redirect_dir=on", b"metacopy=on"} <= set(options)
        assert {b"volatile", b"fsync=volatile"} & set(options)
        assert b"index=on" not in options


def test_a_symlink_is_no_target(stand: Stand, each_way: str) -> None:
    link = os.path.join(stand.top, b"link")
    os.symlink(stand.target, link)
    with pytest.raises(OSError):
        mount_overlay(layers_in(stand, b"x"), link, source=SOURCE)
    assert not is_mounted(stand.target, SOURCE)


def test_only_our_own_mount_is_taken_away(stand: Stand) -> None:
    with pytest.raises(Refused):
        unmount(stand.target, SOURCE)
    with mounted(layers_in(stand, b"x"), stand.target):
        with pytest.raises(Refused):
            unmount(stand.target, b"layerfs:other:ws")
        kernel.mount(b"none", stand.target, b"tmpfs")
        assert not is_mounted(stand.target, SOURCE)
        with pytest.raises(Refused):
            unmount(stand.target, SOURCE)
        kernel.umount(stand.target)


@pytest.fixture
def holder(stand: Stand) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


HOLDERS = {
    "cwd": "cd {target} && echo ready && exec sleep 4400",
    "open": "exec 7<{target}/same; echo ready; exec sleep 4400",
    "map": "exec python3 -c 'import mmap,time; f=open(\"{target}/same\"); m=mmap.mmap(f.fileno(),1,prot=1);"
    "f.close(); print(\"ready\", flush=True); time.sleep(4400)'",
}


@pytest.mark.parametrize("how", sorted(HOLDERS))
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same namespace", "other namespace"])
def test_a_busy_mount_names_who_holds_it(
    stand: Stand, holder: list[subprocess.Popen[bytes]], how: str, elsewhere: bool
) -> None:
    with mounted(layers_in(stand, b"x"), stand.target):
        script = HOLDERS[how].format(target=os.fsdecode(stand.target))
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script] if elsewhere else ["sh", "-c", script]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        holder.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        mount = find_mount(stand.target, SOURCE)
        assert mount is not None
        found = {each.pid: each.how for each in find_holders(stand.target, mount.device)}
        if how == "map":
            assert "map" in found[process.pid] or "open" in found[process.pid]
        else:
            assert found[process.pid] == (how,)
        if not elsewhere:
            with pytest.raises(MountBusy, match=rf"pid {process.pid} \("):
                unmount(stand.target, SOURCE)
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_volatile_upper_is_recognised_and_can_be_mounted_again(stand: Stand) -> None:
    layers = layers_in(stand, b"x")
    with mounted(layers, stand.target, volatile=True):
        Path(os.fsdecode(stand.target), "kept").write_text("x")
    assert was_volatile(layers.work)
    with pytest.raises(OSError):
        mount_overlay(layers, stand.target, source=SOURCE)
    reset_work(layers.work)
    assert not was_volatile(layers.work)
    with mounted(layers, stand.target, volatile=False):
        assert read(stand, "kept") == "x"
    assert not was_volatile(layers.work)


def test_the_mount_table_is_unescaped() -> None:
    line = rb"36 35 98:0 /a\040b /mnt\134x\011y rw master:1 - overlay layerfs:s\040t:w rw,lowerdir=/a\054b" + b"\n"
    (mount,) = parse_mountinfo(line)
    assert (mount.root, mount.target, mount.source) == (b"/a b", b"/mnt\\x\ty", b"layerfs:s t:w")
    assert mount.device == os.makedev(98, 0)
    assert parse_mountinfo(b"nonsense\n\n") == []
