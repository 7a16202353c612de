"""The way of one load, from request to resident model."""
