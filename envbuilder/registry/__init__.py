"""A trusted registry client: transport, auth, verified pull and push."""
