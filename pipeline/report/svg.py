"""A matplotlib figure as SVG that can stand inside a page: no prologue, no metadata, ids of its own."""

import io
import re

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure


def inline(figure: Figure, prefix: str, title: str) -> str:
    """Return a figure as an `<svg>` element.

    Args:
        figure: what to draw.
        prefix: goes before every id, since a page holds several figures.
        title: what the figure shows, for those who cannot see it.
    """
    buffer = io.StringIO()
    FigureCanvasSVG(figure)
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    # The page's style decides the size; the view box keeps the proportions.
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1).strip()
