"""A job request to a pinned image and a start plan."""
