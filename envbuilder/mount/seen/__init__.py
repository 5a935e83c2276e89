"""What people see of mounts: which reads waited, for which files; reports and pictures of starts; totals of a node."""
