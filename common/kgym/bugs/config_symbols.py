"""Config symbols without which a run would fail. Pure."""

import re
from collections.abc import Sequence

from kgym.errors import UserError


def refuse_without(config: str, symbols: Sequence[str]) -> None:
    """Raise UserError `config_lacks` unless all symbols are `y` in a final .config."""
    values = dict(re.findall(r"(?m)^CONFIG_(\w+)=([ym])$", config))
    lacking = [
        f"CONFIG_{name}=y (it is {values.get(name, 'n')})"
        for name in symbols
        if values.get(name) != "y"
    ]
    if lacking:
        raise UserError(
            "config_lacks", f"guests that start from a disk need a kernel with {', '.join(lacking)}"
        )
