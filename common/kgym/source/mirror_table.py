"""A folder's table of local mirrors: `map.json`, an object from repositories' URLs to paths."""

import json
from pathlib import Path

from kgym.errors import InfrastructureError

TABLE = "map.json"
_MOST_BYTES = 1 << 20


def mirror_table(folder: Path) -> dict[str, str]:
    """Return the paths by their URLs, both as they are written; empty if there is no table.

    Raises InfrastructureError("bad_mirrors") for one that cannot be read.
    """
    file = folder / TABLE
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise InfrastructureError("bad_mirrors", f"{file}: more than {_MOST_BYTES} bytes")
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InfrastructureError("bad_mirrors", f"{file}: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise InfrastructureError("bad_mirrors", f"{file}: no object from URL to path")
    return found
