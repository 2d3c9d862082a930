"""Expects an error by its reason, the part that callers rely on."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kgym.errors import KgymError


@contextmanager
def refused(
    reason: str, match: str | None = None, kind: type[KgymError] = KgymError
) -> Iterator[pytest.ExceptionInfo[KgymError]]:
    """Expect an error of this reason and kind, whose words match."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert caught.value.reason == reason
