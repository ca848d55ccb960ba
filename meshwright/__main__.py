"""`python -m meshwright` is `meshwright`."""

import sys

from meshwright.cli import main

if __name__ == "__main__":
    sys.exit(main())
