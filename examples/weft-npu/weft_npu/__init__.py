"""An example accelerator: what a vendor writes so that Weft compiles for a chip. See README.md."""
