"""Take pictures of the monitor's pages with demo data, for `kgym monitor shoot`.

Prints a line of JSON for each picture, or for the error that ended it.
"""

import argparse
import json
import logging
import signal
import sys
from pathlib import Path

from kgym.errors import KgymError, UserError
from kgym.host import process_logs
from kgym_cli.output import people
from tests.demo import monitor_pages, screenshots
from tests.demo.demo_site import demo_site, filled


def main() -> None:
    """Take the pictures that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where NAME.png of each page goes")
    parser.add_argument("--data", type=Path, required=True, help="an empty folder")
    parser.add_argument("--theme", choices=("light", "dark"), required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--height", type=int, required=True)
    parser.add_argument("--page", dest="names", action="append", default=[])
    process_logs.configure(level=logging.WARNING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _shoot(parser.parse_args())
    except KgymError as error:
        _print(error=error.reason, message=error.message, cause=error.cause)
    except KeyboardInterrupt:
        sys.exit(130)


def _shoot(chosen: argparse.Namespace) -> None:
    if unknown := set(chosen.names) - set(monitor_pages.NAMES):
        known = ", ".join(monitor_pages.NAMES)
        raise UserError("bad_option", f"{', '.join(sorted(unknown))}; there are: {known}")
    screenshots.chromium()  # raises UserError `no_browser`, before the demo data are made
    with demo_site(chosen.data) as site:
        people.print("making the demo data", style="dim")
        pages = [page for page in filled(site) if not chosen.names or page.name in chosen.names]
        for picture in screenshots.shoot(
            site.url,
            pages,
            chosen.folder,
            theme=chosen.theme,
            width=chosen.width,
            height=chosen.height,
        ):
            answer = {
                "page": picture.page.name,
                "path": picture.page.path,
                "file": str(picture.file),
                "width": picture.width,
                "height": picture.height,
                "size": picture.file.stat().st_size,
            }
            _print(picture=answer, description=picture.page.description)


def _print(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


main()
