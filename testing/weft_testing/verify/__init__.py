"""What `weft verify` does: runs a model on a target and beside it, and where results differ says which node, graph pass
or kernel stage departed first.

Each piece of what a target does is run on the very inputs that it got and held against its meaning, so that what only
hands an error on is not blamed for it. One value at a time is looked at, and held no longer than the run itself needs
it.

    measure     how far a result is from what is expected
    rounding    how far it may be: the operators' own tolerances, carried through the graph
    departure   the first node of a graph whose value is not that of another source
    part        what one target computes of a model, kernel by kernel
    passes      which graph pass
    stages      which stage of a kernel
    verify      all of it
    report      what was found
"""
