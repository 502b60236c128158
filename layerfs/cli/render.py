"""The progress bar on a terminal: the only module that imports Rich.

Owns what long work looks like while it runs. Nothing appears in a pipe or a file; the caller decides by asking for a bar
only when stderr is a terminal. Results are not rendered here: they are bytes made in ``present``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from layerfs.cli.quantities import counted, readable_size

REFRESH_PER_SECOND = 8


class Bar:
    """A progress listener that draws one line per phase on stderr.

    Counting is cheap and drawing is not, so counts are handed to Rich a few times per second only: a capture of a million
    files calls ``advance`` a million times.
    """

    def __init__(self, display: Progress) -> None:
        self._display = display
        self._task: TaskID | None = None
        self._files = self._size = self._total = 0
        self._by_size = False
        self._drawn = 0.0

    def phase(self, label: str, files: int = 0, size: int = 0) -> None:
        """Close the phase before and begin a new line; its length is measured in bytes when their number is known."""
        self.finish()
        self._files = self._size = 0
        self._by_size, self._total = size > 0, size or files
        self._task = self._display.add_task(label, total=self._total or None, detail="")

    def advance(self, files: int = 0, size: int = 0) -> None:
        """Move the line on."""
        self._files += files
        self._size += size
        now = monotonic()
        if now - self._drawn >= 1 / REFRESH_PER_SECOND:
            self._drawn = now
            self._draw()

    def finish(self) -> None:
        """Fill the line of the current phase; its work is done, whatever the totals promised."""
        if self._task is not None:
            self._draw()
            self._display.update(self._task, total=self._total or 1, completed=self._total or 1)
            self._task = None

    def _draw(self) -> None:
        if self._task is None:
            return
        detail = counted(self._files, "file") + (f"  {readable_size(self._size)}" if self._size else "")
        done = self._size if self._by_size else self._files
        self._display.update(self._task, completed=done, detail=detail)


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
