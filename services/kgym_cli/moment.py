"""Moments on the command line: as the tables print them, or as ISO 8601 has them."""

from datetime import datetime
from typing import Any

import click


class Moment(click.ParamType[datetime]):
    """A moment such as `2026-01-31`, `2026-01-31 12:00:00` or `2026-01-31T12:00Z`.

    Without a zone it is this machine's time, as printed.
    """

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return the moment, with its zone."""
        try:
            return datetime.fromisoformat(str(value).strip()).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time; write e.g. 2026-01-31 12:00:00", param, ctx)
