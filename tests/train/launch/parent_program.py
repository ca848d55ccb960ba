"""A parent whose ranks sleep, to be ended from outside: `python parent_program.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from meshwright.train.launch.parent import launch
from meshwright.train.show.run_folder import RunFolder

PROGRAM = Path(__file__).with_name("rank_program.py")

if __name__ == "__main__":
    launch([sys.executable, str(PROGRAM), "sleep_through", sys.argv[1]], 2, RunFolder(Path(sys.argv[1])), {})
