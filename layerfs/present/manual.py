"""How a manual page is answered: laid out for the terminal, or as its source in the document."""

from __future__ import annotations

from layerfs.cli.manual import Page, lay_out
from layerfs.cli.output import Reply, encode_text


def present_page(page: Page, columns: int) -> Reply:
    """Answer with one manual page."""
    return Reply({"page": page.name, "source": page.source}, encode_text(lay_out(page.source, columns)))
