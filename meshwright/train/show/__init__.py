"""What a person sees of a run, and what it leaves behind."""
