"""Hunyuan dense: Hunyuan VL's layers with positions of one axis."""

from dataclasses import replace

from app.architectures.catalog.hunyuan_vl import ARCHITECTURE as HUNYUAN_VL
from app.architectures.hparams import RopeType

ARCHITECTURE = replace(HUNYUAN_VL, name="hunyuan-dense", rope=RopeType.NEOX)
