"""What is in a GGUF file: bounded reading, one validation, byte sources."""
