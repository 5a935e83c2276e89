"""What the host gives: mount system calls, loop devices, /dev/fuse, name spaces, and which of it works."""
