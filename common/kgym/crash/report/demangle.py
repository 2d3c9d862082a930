"""Names of functions as their source has them."""

from kgym.crash.report import cxx_names, rust_names
from kgym.crash.report.mangled_names import Unreadable


def demangle(symbol: str) -> str:
    """Return the name of a mangled function of Rust or C++; anything else comes back as it is.

    Written as in the source: the generic arguments of a Rust function behind `::`, a type's
    without; a C++ function without its parameters.
    """
    try:
        if symbol.startswith("_R"):
            return rust_names.path(symbol[2:])
        if symbol.startswith("_Z"):
            return cxx_names.function(symbol[2:])
    except (Unreadable, IndexError, ValueError):
        pass
    return symbol
