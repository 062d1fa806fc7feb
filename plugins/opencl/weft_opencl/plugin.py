"""What weft-opencl contributes. Imports nothing heavy: a plugin module loads in milliseconds."""
