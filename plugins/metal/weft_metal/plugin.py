"""What weft-metal contributes. Imports nothing heavy: a plugin module loads in milliseconds."""
