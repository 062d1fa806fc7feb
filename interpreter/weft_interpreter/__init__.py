"""Runs loop programs on numpy, one statement at a time, and checks every access: `weft_interpreter.interpret`."""
