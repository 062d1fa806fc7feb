"""Graph passes that know operators of this package, each a function in a file of its own. `PASSES` has their places."""
