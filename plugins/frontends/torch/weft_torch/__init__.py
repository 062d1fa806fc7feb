"""Weft's PyTorch frontend: exported programs as graphs, and the backend of `torch.compile`."""
