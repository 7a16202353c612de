"""What a file is: its architecture, its hyperparameters, the facts that follow."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from app.architectures.blame import Questioned
from app.architectures.blocks import with_scales
from app.architectures.common import declared_keys, resolve_common
from app.architectures.descriptor import Architecture
from app.architectures.hparams import HParams
from app.architectures.manifest import Comparison, compare
from app.architectures.registry import Catalog
from app.errors import Fact, MetadataError
from app.modelfile.text import brief, shown
from app.modelfile.types import ArrayValue, KeyValue, ModelFile, ValueType
from app.modelfile.vocabulary import check_vocabulary

_NOT_OF_THE_MODEL: Final = ("general.", "tokenizer.")
_MOST_NAMED: Final = 4


@dataclass(frozen=True)
class Understanding:
    """A file with its architecture and hyperparameters. Its tensors have not been judged: see `comparison`.

    `warnings` are sentences about what was accepted in file and vocabulary but looks odd.
    """

    model: ModelFile
    architecture: Architecture
    hparams: HParams
    warnings: tuple[str, ...] = ()

    @cached_property
    def comparison(self) -> Comparison:
        """The file's tensors held against the architecture's manifest."""
        manifest = with_scales(self.architecture.manifest)
        file = shown(self.model.shards[0].path)
        return compare(self.model.by_name, manifest(self.hparams, self.model.by_name), file)

    def require_tensors(self) -> None:
        """Raise the first disagreement of tensors and metadata, with the keys that the expectation follows from.

        MetadataError: missing_tensor, wrong_shape or unexpected_tensor; the fact `keys` names the keys.
        """
        try:
            self.comparison.require()
        except MetadataError as error:
            keys = self._keys_behind()
            if not keys:
                raise
            facts: dict[str, Fact] = {**error.facts, "keys": [*keys]}
            verb = "computed from" if error.code == "wrong_shape" else "perhaps for want of"
            message = f"{error.message}; {verb} {', '.join(keys)}"
            raise MetadataError(message, code=error.code, **facts) from error

    def _keys_behind(self) -> tuple[str, ...]:
        architecture, names = self.architecture, self.model.by_name
        questioned = Questioned(
            [(param.name(architecture.name), param) for param in declared_keys(architecture.hparams)],
            self.model.metadata,
            lambda metadata: architecture.observe(resolve(architecture, metadata), names),
            lambda hparams: architecture.manifest(hparams, names),
        )
        first = self.comparison.first_problem
        if first is None:
            return questioned.behind_absence(self.comparison.extra[0].name, wanted=True)
        found = names.get(first.name)
        if found is None:
            return questioned.behind_absence(first.name, wanted=False)
        return questioned.behind_shape(first, found.shape)

    def facts(self) -> dict[str, Any]:
        """The model's facts as JSON, under the reference's names; flags are 0 or 1."""
        hp, capabilities = self.hparams, self.architecture.capabilities
        scalars: dict[str, Any] = {
            "arch": self.architecture.name,
            "type": self.architecture.size_name(hp),
            "n_bytes": self.model.n_bytes,
            "n_params": self.model.n_params,
            "rope_type": int(self.architecture.rope_type(hp)),
            "n_layer_all": hp.n_layer_all,
            "n_layer": hp.n_layer,
            "n_layer_nextn": hp.n_layer_nextn,
            "n_embd": hp.n_embd,
            "n_ctx_train": hp.n_ctx_train,
            "n_expert": hp.n_expert,
            "swa_type": int(hp.swa_type),
            "n_swa": hp.n_swa,
            "n_embd_inp": hp.n_embd_inp,
            "n_embd_out": hp.n_embd_out,
            "n_vocab": hp.n_vocab,
            "is_mla": int(hp.is_mla),
            "use_alibi": int(hp.use_alibi),
            "causal_attn": int(hp.causal_attn),
            "is_recurrent": int(capabilities.recurrent),
            "is_hybrid": int(capabilities.hybrid),
            "is_diffusion": int(capabilities.diffusion),
            "supports_sm_tensor": int(capabilities.tensor_split),
            "has_encoder": int(capabilities.encoder),
            "has_decoder": int(capabilities.decoder),
            "n_embd_r": hp.n_embd_r,
            "n_embd_s": hp.n_embd_s,
        }
        per_layer: Mapping[str, Callable[[int], int]] = {
            "n_head": hp.n_head.__getitem__,
            "n_head_kv": hp.n_head_kv.__getitem__,
            "n_ff": hp.n_ff.__getitem__,
            "n_embd_head_k": hp.n_embd_head_k,
            "n_embd_head_v": hp.n_embd_head_v,
            "n_embd_k_gqa": hp.n_embd_k_gqa,
            "n_embd_v_gqa": hp.n_embd_v_gqa,
            "n_rot": hp.n_rot,
            "is_swa": hp.is_swa.__getitem__,
            "is_recr": hp.is_recr.__getitem__,
            "has_kv": hp.has_kv,
        }
        layers = range(hp.n_layer_all)
        return scalars | {name: [int(of(layer)) for layer in layers] for name, of in per_layer.items()}


def understand(model: ModelFile, catalog: Catalog) -> Understanding:
    """Look up what `model` is and read its hyperparameters.

    Raises MetadataError: not_a_model (a projector, an adapter), no_tensors (a vocabulary alone),
    unsupported_architecture, missing_key, wrong_key_type, bad_value, bad_tokenizer.
    """
    file = shown(model.shards[0].path)
    try:
        architecture, hparams = _recognise(model, catalog)
    except MetadataError as error:
        raise MetadataError(f"{file}: {error.message}", code=error.code, file=file, **error.facts) from error
    warnings = (*model.warnings, *check_vocabulary(model), *_not_finite(model.metadata))
    return Understanding(model, architecture, hparams, warnings)


def _recognise(model: ModelFile, catalog: Catalog) -> tuple[Architecture, HParams]:
    """What `understand` looks up; errors do not name the file yet."""
    name = _string(model.metadata, "general.architecture")
    kind = _string(model.metadata, "general.type")
    if kind == "mmproj":
        raise _not_a_model("a multimodal projector (general.type is 'mmproj')", "general.type")
    if kind == "adapter":
        raise _not_a_model("an adapter (LoRA), which is applied to a model and is none itself", "general.type")
    architecture = catalog.get(name)
    if architecture.refused is not None:
        raise _not_a_model(architecture.refused, "general.architecture", architecture.refused_code)
    if not model.tensors:
        raise MetadataError(
            "the file has metadata and no tensors: a vocabulary, not a model",
            code="no_tensors",
            expected="at least one tensor",
            found=0,
        )
    file_type = model.metadata.get("general.file_type")
    if file_type is not None and file_type.type is not ValueType.U32:
        raise MetadataError(
            f"general.file_type is {file_type.type.name.lower()}, expected u32",
            code="wrong_key_type",
            key="general.file_type",
            expected="u32",
            found=file_type.type.name.lower(),
        )
    hparams = architecture.observe(resolve(architecture, model.metadata), model.by_name)
    return architecture, hparams


def resolve(architecture: Architecture, metadata: Mapping[str, KeyValue]) -> HParams:
    """The hyperparameters of a model of `architecture`. Raises MetadataError as `understand` does."""
    capabilities = architecture.capabilities
    hparams = resolve_common(
        architecture.name, metadata, architecture.hparams, lone_expert_is_dense=capabilities.lone_expert_is_dense
    )
    if capabilities.recurrent:
        hparams = replace(hparams, is_recr=(True,) * hparams.n_layer_all)
    return architecture.derive(hparams)


def _not_finite(metadata: Mapping[str, KeyValue]) -> tuple[str, ...]:
    """A warning that names numbers of the model that are none; the reference takes them all the same."""
    found = [
        f"{brief(key)} is {odd}"
        for key, entry in metadata.items()
        if not key.startswith(_NOT_OF_THE_MODEL) and (odd := _first_not_finite(entry)) is not None
    ]
    if not found:
        return ()
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return (f"not finite: {', '.join(found[:_MOST_NAMED])}{more}; what the model computes may make no sense",)


def _first_not_finite(entry: KeyValue) -> float | None:
    values = (entry.value.elements or ()) if isinstance(entry.value, ArrayValue) else (entry.value,)
    return next((value for value in values if isinstance(value, float) and not math.isfinite(value)), None)


def _string(metadata: Mapping[str, KeyValue], key: str) -> str:
    entry = metadata.get(key)
    if entry is None:
        return ""
    if entry.type is not ValueType.STRING:
        found = entry.type.name.lower()
        raise MetadataError(
            f"{key} is {found}, expected string", code="wrong_key_type", key=key, expected="string", found=found
        )
    return str(entry.value).strip()


def _not_a_model(what: str, key: str, code: str = "not_a_model") -> MetadataError:
    return MetadataError(f"the file is not a model that can be loaded: it is {what}", code=code, key=key)
