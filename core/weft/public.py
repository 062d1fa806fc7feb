"""The old name of `weft_testing.public`, of the distribution `weft-testing`; as a program it runs that.

Importing from here warns of its deprecation; version 0.3 has it no more.
"""

if __name__ == "__main__":
    import runpy

    runpy.run_module("weft_testing.public", run_name="__main__")
else:
    from weft.aliases import renamed

    __getattr__ = renamed(__name__)
