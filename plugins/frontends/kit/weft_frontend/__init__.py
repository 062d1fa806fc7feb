"""The frontend kit: what readers of model formats share."""
