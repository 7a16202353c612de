"""The command line: one module a command. Errors are one line on standard error; 1 means failed, 2 misused."""
