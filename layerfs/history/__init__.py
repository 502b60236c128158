"""History: commits, names for them, what differs between them, and how two lines of work become one."""
