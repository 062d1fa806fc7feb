"""For tests, ours and those of plugins: models with known weights, pictures to run them on."""
