"""Ranks are started together, and end together with the first that fails."""
