"""Llama as an embedding model: the same tensors, all positions see each other."""

from dataclasses import replace

from app.architectures.catalog.llama import ARCHITECTURE as LLAMA

ARCHITECTURE = replace(LLAMA, name="llama-embed")
