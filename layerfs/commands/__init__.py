"""One module per command: options, one library call, one presentation. Nothing else."""
