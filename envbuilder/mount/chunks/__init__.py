"""The chunk store: what is on this node of which layer, its quota, its check."""
