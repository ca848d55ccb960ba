"""What of a run is kept on disk, and how a run goes on from it."""
