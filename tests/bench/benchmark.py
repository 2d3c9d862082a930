"""The benchmark's own speed: see `benchmark_kenv` for what agents wait for."""

import argparse
import json

from tests.bench.benchmark_kenv import kenv


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="as one line of JSON")
    as_json = parser.parse_args().json
    figures = kenv()
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
