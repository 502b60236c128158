"""Every combination of eleven states of one path in base, ours and theirs, against what git does with it.

Equal git's outcome except for two deliberate differences: row 6 (both sides added the same content, one of them
executable: git's conflict is noise) and row 13 (only the mode of a file changed that the other side deleted).
"""

from __future__ import annotations

from pathlib import Path

from trees import MERGE_NS, Spec, file, link, tree

from layerfs.merge.conflicts import NoteKind
from layerfs.merge.treemerge import merge_trees
from layerfs.objects.content import read_content
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import walk
from layerfs.objects.memory import MemoryObjects

ORACLE = Path(__file__).parent.parent / "golden" / "git-merge-oracle.txt"


def text(**lines: str) -> bytes:
    parts = [f"line{number}" for number in range(10)]
    for name, line in lines.items():
        parts[int(name[1:])] = line
    return "".join(part + "\n" for part in parts).encode()


CONTENTS = {"F0": text(), "Fa": text(_2="AAA"), "Fb": text(_8="BBB"), "Fc": text(_2="CCC")}
NAMES = {content: name for name, content in CONTENTS.items()} | {b"inner\n": "d1", b"inner2\n": "d2"}


def states(objects: MemoryObjects) -> dict[str, Spec]:
    found: dict[str, Spec] = {"absent": None, "L1": link(b"target1"), "L2": link(b"target2")}
    found |= {name: file(objects, content) for name, content in CONTENTS.items()}
    found |= {name + "+x": file(objects, CONTENTS[name], 0o755) for name in ("F0", "Fa")}
    return found | {"D1": {"x": b"inner\n"}, "D2": {"x": b"inner2\n"}}


def shown(objects: MemoryObjects, root: Entry) -> list[str]:
    found = []
    for path, entry in walk(objects, root):
        if path in (b"", b"keep") or entry.kind is EntryKind.DIR:
            continue
        if entry.kind is EntryKind.SYMLINK:
            what = "L" + entry.ref.decode()[-1]
        else:
            what = NAMES.get(read_content(objects, entry), "textmerge") + ("+x" if entry.mode & 0o100 else "")
        found.append(f"{path.decode()}={what}")
    return sorted(found)


def is_row_6(base: str, ours: str, theirs: str) -> bool:
    """Both added (the base is absent or of another type) the same text, one of them executable."""
    same_text = ours != theirs and ours.removesuffix("+x") == theirs.removesuffix("+x")
    return same_text and not base.startswith("F")


def is_row_13(base: str, ours: str, theirs: str) -> bool:
    """One side deleted the file, the other changed only its mode."""
    kept = theirs if ours == "absent" else ours
    return "absent" in (ours, theirs) and kept != base and kept.removesuffix("+x") == base.removesuffix("+x")


def test_equals_git_on_every_combination() -> None:
    objects = MemoryObjects()
    roots = {name: tree(objects, {"keep": b"keep\n", "p": state}) for name, state in states(objects).items()}
    rows = [line.split() for line in ORACLE.read_text().splitlines() if not line.startswith("#")]
    assert len(rows) == 1331
    different = 0
    for base, ours, theirs, verdict, *paths in rows:
        result = merge_trees(
            objects, objects, roots[base], roots[ours], roots[theirs], merge_time_ns=MERGE_NS
        )
        row = (base, ours, theirs)
        if is_row_6(*row):
            different += 1
            assert result.root is not None and shown(objects, result.root) == [
                f"p={ours.removesuffix('+x')}+x"
            ], row
            assert [note.kind for note in result.notes] == [NoteKind.MODE], row
        elif is_row_13(*row):
            different += 1
            assert result.root is not None and shown(objects, result.root) == [], row
            assert [note.kind for note in result.notes] == [NoteKind.MODE_DELETE], row
        else:
            assert result.is_clean == (verdict == "clean") == (not result.conflicts), row
            if result.root is not None:
                assert shown(objects, result.root) == paths, row
    assert different == 28
