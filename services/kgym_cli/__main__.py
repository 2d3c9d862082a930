"""`python -m kgym_cli` is `kgym`."""

from kgym_cli.main import main

main()
