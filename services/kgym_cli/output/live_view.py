"""What is shown while a command goes on: on a terminal a view that lives, elsewhere lines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.live import Live

from kgym_cli.output import people


def lives() -> bool:
    """Tell whether a view can live: what is printed there can be drawn over."""
    return people.is_terminal and not people.is_dumb_terminal


@contextmanager
def shown(view: Callable[[int], RenderableType]) -> Iterator[Callable[[], None]]:
    """Show a view, by the height of the terminal in lines; what is given shows it anew.

    It is gone at the end. Where no view can live, nothing is shown.
    """
    if not lives():
        yield lambda: None
        return
    with Live(console=people, auto_refresh=False, transient=True) as live:
        yield lambda: live.update(view(people.height), refresh=True)
