"""What the GPU targets share: see docs/architecture.md, "Grids"."""
