"""ggufd: a daemon that loads GGUF models on request."""

__version__ = "0.1.0"
