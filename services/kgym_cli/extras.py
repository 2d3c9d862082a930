"""Extras of the installation: one-line errors for what is missing."""

import re
from collections.abc import Iterator
from pathlib import Path

from kgym import configs
from kgym.errors import UserError

PACKAGE = "kgymsuite"
# Extras of a platform that runs everything on one machine; `all` has all extras.
ONE_MACHINE = ("scheduler", "worker", "tracer")
_REQUIREMENT = re.compile(r"([\w-]+)[^;]*;\s*extra\s*==\s*[\"']([\w-]+)[\"']\s*")


def require(*extras: str) -> None:
    """Raise UserError `extra_missing` unless all packages of these extras are installed."""
    wanted = [name for extra, name in _brought() if extra in extras]
    if absent := [name for name in wanted if not _is_installed(name)]:
        raise _missing(absent[0], [",".join(extras)])


def require_checkout(purpose: str) -> Path:
    """Return the checkout's folder; raise UserError `extra_missing` if this runs from a package.

    `purpose` names the feature. Test equipment is not part of any package.
    """
    if (folder := configs.checkout()) is None:
        raise UserError("extra_missing", f"{purpose} needs a checkout: use `./run kgym` there")
    return folder


def missing(error: ModuleNotFoundError) -> UserError | None:
    """Return a UserError for a missing module of an extra, None for other modules."""
    module = (error.name or "").partition(".")[0].replace("_", "-")
    extras = [
        extra
        for extra, name in _brought()
        if extra in ONE_MACHINE and (name == module or name.startswith(f"{module}-"))
    ]
    return _missing(module, extras) if extras else None


def _missing(name: str, choices: list[str]) -> UserError:
    packages = " or ".join(f"pip install '.[{choice}]'" for choice in choices)
    return UserError(
        "extra_missing",
        f"this needs {name}, which is not installed. In a checkout, run: {packages}",
        package=name,
    )


def _brought() -> Iterator[tuple[str, str]]:
    """Yield (extra, distribution) from the installed package's metadata."""
    from importlib import metadata  # noqa: PLC0415 - it takes longer than most commands need

    # The installed metadata, not pyproject.toml, which a wheel does not contain.
    for text in metadata.requires(PACKAGE) or ():
        match = _REQUIREMENT.fullmatch(text)
        if match is not None:
            yield match[2], match[1]


def _is_installed(name: str) -> bool:
    from importlib import metadata  # noqa: PLC0415 - as above

    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
