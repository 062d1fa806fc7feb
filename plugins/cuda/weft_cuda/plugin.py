"""What weft-cuda contributes. Imports nothing heavy: a plugin module loads in milliseconds."""
