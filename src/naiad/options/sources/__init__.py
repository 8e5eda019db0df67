"""Where the values of options are from: the command line, a file, environment variables."""
