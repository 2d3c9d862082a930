"""Whether a kernel's config has what a run needs of it. Pure."""

import re
from collections.abc import Sequence

from kgym.errors import UserError


def refuse_without(config: str, symbols: Sequence[str]) -> None:
    """Look symbols up in a final .config; raise UserError `config_lacks` unless all are `y`."""
    values = dict(re.findall(r"(?m)^CONFIG_(\w+)=([ym])$", config))
    lacking = [
        f"CONFIG_{name}=y (it is {values.get(name, 'n')})"
        for name in symbols
        if values.get(name) != "y"
    ]
    if lacking:
        raise UserError(
            "config_lacks",
            f"guests that start from a disk need a kernel with {', '.join(lacking)}",
        )
