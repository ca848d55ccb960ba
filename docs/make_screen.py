"""A picture of a terminal in which a command has really run:

    python docs/make_screen.py docs/screen.svg meshwright train llama3_debug

The command runs in tmux, which must be installed, so that what it sees is a terminal; what stands there at its end is
drawn as an SVG.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
from pathlib import Path

from rich.console import Console
from rich.text import Text

SERVER = "make-screen"  # a tmux of its own, so that nothing of the user's is touched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, help="the SVG to write")
    parser.add_argument("--columns", type=int, default=92)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run")
    arguments = parser.parse_args()
    line = shlex.join(arguments.command)
    screen = Text.assemble((f"$ {line}\n", "bold"), Text.from_ansi(run(line, arguments.columns)))
    title = " ".join(arguments.command[:3])
    arguments.picture.write_text(draw(screen, arguments.columns, title), encoding="utf-8")


def run(line: str, columns: int) -> str:
    """The colours and characters in a terminal in which the shell command `line` has come to its end."""
    tmux("new-session", "-d", "-x", str(columns), "-y", "100", f"{line}; tmux -L {SERVER} wait-for -S ended; cat")
    try:
        tmux("wait-for", "ended")
        return tmux("capture-pane", "-e", "-p").rstrip()
    finally:
        tmux("kill-server")


def tmux(*arguments: str) -> str:
    return subprocess.run(["tmux", "-L", SERVER, *arguments], check=True, capture_output=True, text=True).stdout


def draw(screen: Text, columns: int, title: str) -> str:
    """An SVG without references to anything outside it."""
    console = Console(record=True, width=columns, file=io.StringIO())
    console.print(screen)
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=title), flags=re.DOTALL)


if __name__ == "__main__":
    main()
