"""`meshwright parity`: layouts and backends of a recipe held against one device, by running them."""

from meshwright.parity.command import run

__all__ = ["run"]
