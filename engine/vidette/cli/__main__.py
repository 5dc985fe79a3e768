"""`python -m vidette.cli`: the `vidette` command of this very interpreter."""

import sys

from vidette.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
