"""Settings of the whole suite."""

from hypothesis import settings

settings.register_profile("meshwright", deadline=None, derandomize=True)  # one run is like the next
settings.load_profile("meshwright")
