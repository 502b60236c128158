"""The command line: from an argument list to an answer and an exit code."""
