"""Compare the demo's result with what is expected; uses nothing of layerfs.

    demo_check.py record DIR FILE      describe every entry of a directory
    demo_check.py compare WORK RESULT  the original, plus what fix-a and try-c changed, must be exactly the result

Expected is computed from three descriptions: the project before, fix-a (with fix-b merged in by lines and files), and
try-c. For each path: whatever fix-a or try-c changed, else the original. What no side keeps exactly – directory times,
and times of files that a merge stamps anew so that build tools notice – is compared without its time.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys

IGNORED = {".layerfs"}


def describe(top: str) -> dict[str, list[object]]:
    """Return type, mode, owner, time, content of every entry below ``top``."""
    found: dict[str, list[object]] = {}
    for directory, names, files in os.walk(top):
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            relative = os.path.relpath(path, top)
            if relative in IGNORED:
                continue
            info = os.lstat(path)
            kind = stat.S_IFMT(info.st_mode)
            content = ""
            if stat.S_ISREG(info.st_mode):
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            elif stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            time = 0 if stat.S_ISDIR(info.st_mode) else info.st_mtime_ns
            found[os.fsencode(relative).hex()] = [
                kind,
                stat.S_IMODE(info.st_mode),
                info.st_uid,
                info.st_gid,
                content,
                time,
            ]
    return found


def load(path: str) -> dict[str, list[object]]:
    """Read a description."""
    with open(path, encoding="ascii") as file:
        loaded: dict[str, list[object]] = json.load(file)
    return loaded


def compare(work: str, result_path: str) -> int:
    """Print how the result compares; return the exit code."""
    before, one, two = (
        load(os.path.join(work, name)) for name in ("before.json", "fix-a.json", "try-c.json")
    )
    result = describe(result_path)
    merged_by_layerfs = {bytes.hex(b"src/shop/receipt.py")}
    expected: dict[str, list[object]] = {}
    for path in before.keys() | one.keys() | two.keys():
        base = before.get(path)
        sides = [side.get(path) for side in (one, two) if side.get(path) != base]
        value = sides[0] if sides else base
        if value is not None:
            expected[path] = value
    missing = [path for path in expected if path not in result and not _is_cache(path)]
    from_b = [path for path in result if path not in expected]
    wrong = [
        path
        for path in expected.keys() & result.keys()
        if expected[path][:5] != result[path][:5]
        and path not in merged_by_layerfs
        and not _is_git_state(path)
    ]
    times = [
        path
        for path in expected.keys() & result.keys()
        if expected[path] == before.get(path)
        and expected[path][5] != result[path][5]
        and path not in merged_by_layerfs
    ]
    print(
        f"   {len(result):,} entries; {len(expected) - len(missing):,} as expected to the byte, mode and owner"
    )
    print(f"   {len(from_b)} entries came from fix-b: {_some(from_b)}")
    with open(os.path.join(result_path, "src/shop/receipt.py"), encoding="utf-8") as file:
        receipt = file.read()
    with open(os.path.join(result_path, "src/shop/tax.py"), encoding="utf-8") as file:
        tax = file.read()
    problems = []
    if missing:
        problems.append(f"{len(missing)} missing: {_some(missing)}")
    if wrong:
        problems.append(f"{len(wrong)} differ: {_some(wrong)}")
    if times:
        problems.append(f"{len(times)} untouched files have another time: {_some(times)}")
    if "thank you" not in receipt or "RATE, 2)" not in tax:
        problems.append("the work of fix-a and fix-b is not both there")
    if not any(b"greeting" in bytes.fromhex(path) for path in from_b):
        problems.append("the package installed in fix-b is not there")
    for problem in problems:
        print(f"   PROBLEM: {problem}")
    if not problems:
        print("   main holds the work of fix-a, fix-b and try-c, and everything else exactly as it was")
    return 1 if problems else 0


def _is_cache(path: str) -> bool:
    return b"__pycache__" in bytes.fromhex(path)


def _is_git_state(path: str) -> bool:
    """Git's index holds stat data: it differs between two working trees of equal content."""
    return bytes.fromhex(path) == b".git/index"


def _some(paths: list[str]) -> str:
    shown = ", ".join(os.fsdecode(bytes.fromhex(path)) for path in sorted(paths)[:3])
    return shown + (", …" if len(paths) > 3 else "")


def main() -> int:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["record", directory, target]:
            with open(target, "w", encoding="ascii") as file:
                json.dump(describe(directory), file)
            return 0
        case ["compare", work, result]:
            return compare(work, result)
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
