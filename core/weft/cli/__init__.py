"""The command line: one file per command. Modules here import nothing heavy at the top, so that `weft --help` answers
at once."""
