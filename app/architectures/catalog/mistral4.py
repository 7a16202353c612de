"""Mistral 4: DeepSeek 2's tensors."""

from dataclasses import replace

from app.architectures.catalog.deepseek2 import ARCHITECTURE as DEEPSEEK2

ARCHITECTURE = replace(DEEPSEEK2, name="mistral4")
