"""Images of others: what a container engine has, into our targets and the other way round."""
