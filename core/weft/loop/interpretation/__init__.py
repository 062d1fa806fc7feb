"""The parts of the interpreter of loop programs: `weft.loop.interpret` puts them together."""
