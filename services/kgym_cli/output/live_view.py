"""Live views on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.live import Live

from kgym_cli.output import people


def lives() -> bool:
    """Return whether stderr can be redrawn."""
    return people.is_terminal and not people.is_dumb_terminal


@contextmanager
def shown(view: Callable[[int], RenderableType]) -> Iterator[Callable[[], None]]:
    """Context manager: show `view`, called with the terminal's height; yields a redraw function.

    The view disappears at the end. Without a terminal, nothing is shown.
    """
    if not lives():
        yield lambda: None
        return
    # No refresh thread of rich's: callers redraw from their event loop.
    with Live(console=people, auto_refresh=False, transient=True) as live:
        yield lambda: live.update(view(people.height), refresh=True)
