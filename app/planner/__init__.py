"""Where every tensor lives and where it is cut: pure stages over frozen values."""
