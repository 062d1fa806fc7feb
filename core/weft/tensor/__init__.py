"""The index-formula language."""
