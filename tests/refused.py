"""Expects an error by its reason, the part that callers rely on."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kgym.errors import KgymError


@contextmanager
def refused(reason: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[KgymError]]:
    """Expect a KgymError of this reason, whose words match."""
    with pytest.raises(KgymError, match=match) as caught:
        yield caught
    assert caught.value.reason == reason
