"""The progress bar on a terminal: the only module that imports Rich.

Owns what long work looks like while it runs. Nothing appears in a pipe or a file; the caller decides by asking for a bar
only when stderr is a terminal. Results are not rendered here: they are bytes made in ``present``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from layerfs.present.quantities import readable_size

REFRESH_PER_SECOND = 8


class Bar:
    """A progress listener that draws one line per phase on stderr."""

    def __init__(self, display: Progress) -> None:
        self._display = display
        self._task: TaskID | None = None
        self._by_size = False

    def phase(self, label: str, files: int = 0, size: int = 0) -> None:
        """Close the phase before and begin a new line; its length is measured in bytes when their number is known."""
        self._finish()
        self._by_size = size > 0
        total = size or files or None
        self._task = self._display.add_task(label, total=total, files=0, size=0, detail="")

    def advance(self, files: int = 0, size: int = 0) -> None:
        """Move the line on."""
        if self._task is None:
            return
        task = self._display.tasks[self._task]
        done_files, done_size = task.fields["files"] + files, task.fields["size"] + size
        detail = f"{done_files:,} files" + (f"  {readable_size(done_size)}" if done_size else "")
        step = size if self._by_size else files
        self._display.update(self._task, advance=step, files=done_files, size=done_size, detail=detail)

    def _finish(self) -> None:
        if self._task is None:
            return
        task = self._display.tasks[self._task]
        self._display.update(self._task, total=task.completed or 1, completed=task.completed or 1)


@contextmanager
def open_bar(columns: int) -> Iterator[Bar]:
    """Show a bar on stderr for the time of the block and take it away at its end, whatever happens inside."""
    console = Console(stderr=True, width=columns, highlight=False)
    display = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        refresh_per_second=REFRESH_PER_SECOND,
    )
    with display:
        yield Bar(display)
