"""Local mirrors of repositories: a folder's `map.json`, an object of URL to path."""

import json
from pathlib import Path

from kgym.errors import InfrastructureError

TABLE = "map.json"
_MOST_BYTES = 1 << 20


def mirror_table(folder: Path) -> dict[str, str]:
    """Return the paths by URL, both unchanged; empty if there is no table.

    Raises InfrastructureError `bad_mirrors` for an unreadable table.
    """
    file = folder / TABLE
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise InfrastructureError("bad_mirrors", f"{file}: more than {_MOST_BYTES} bytes")
        table = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InfrastructureError("bad_mirrors", f"{file}: {error}") from error
    if not isinstance(table, dict) or not all(isinstance(target, str) for target in table.values()):
        raise InfrastructureError("bad_mirrors", f"{file}: not an object of URL to path")
    return table
