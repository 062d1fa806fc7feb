"""The Keras frontend: models of Keras 3 as graphs."""
