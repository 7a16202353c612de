"""MiniCPM: Llama's tensors with scaled embeddings, residuals and logits."""

from dataclasses import replace

from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.descriptor import as_read, by_layers
from app.architectures.hparams import HParam, Kind

ARCHITECTURE = replace(
    LLAMA,
    name="minicpm",
    hparams=(
        *LLAMA.hparams,
        HParam("embedding_scale", Kind.F32),
        HParam("residual_scale", Kind.F32),
        HParam("logit_scale", Kind.F32),
    ),
    derive=as_read,
    size_name=by_layers({40: "2B", 52: "1B"}),
)
