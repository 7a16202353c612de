"""PaddleOCR-VL's language model: ERNIE 4.5 with positions on several axes."""

from dataclasses import replace

from app.architectures.catalog.ernie4_5 import ARCHITECTURE as ERNIE
from app.architectures.hparams import RopeType

ARCHITECTURE = replace(ERNIE, name="paddleocr", rope=RopeType.MROPE)
