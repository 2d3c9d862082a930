"""Take a picture of each of the monitor's pages with demo data: `python -m tests.demo.shoot DIR`.

Prints a line of JSON for each picture. No kernel is built; the installed Chromium takes them.
"""

import argparse
import json
import logging
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from kgym.errors import KgymError
from kgym.host import process_logs
from kgym_cli.output import people
from tests.demo import monitor_pages, screenshots
from tests.demo.demo_site import demo_site, filled


def main() -> None:
    """Take the pictures that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where NAME.png of each page goes")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1600)
    parser.add_argument("--page", dest="names", action="append", choices=monitor_pages.NAMES)
    process_logs.configure(level=logging.WARNING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _shoot(parser.parse_args())
    except KgymError as error:
        sys.exit(f"{error.reason}: {error.message}")
    except KeyboardInterrupt:
        sys.exit(130)


def _shoot(chosen: argparse.Namespace) -> None:
    screenshots.chromium()  # raises UserError `no_browser`, before the demo data are made
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as data, demo_site(Path(data)) as site:
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
            print(json.dumps(answer), flush=True)


main()
