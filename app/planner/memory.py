"""A model's memory as the stages get it: its cache tensors, classified, or one refusal.

From there caches go the way of the weights: cut in tensor mode, beside their layer otherwise.
"""

from app.architectures.understanding import Understanding
from app.errors import PlanError
from app.planner.plan import Classified, SplitMode, SplitTargets


def classify_caches(understanding: Understanding, targets: SplitTargets) -> tuple[Classified, ...]:
    """The caches of the context that is asked for, in the order they are made; none without a context.

    Raises PlanError where the model cannot have that context: unsupported_split in tensor mode, else impossible_plan.
    """
    context, tensor_mode = targets.context, targets.mode is SplitMode.TENSOR
    if context is None:
        return ()
    architecture = understanding.architecture
    if tensor_mode and not (context.flash_attention and architecture.capabilities.flash_attention):
        raise PlanError(
            "a model that is split by tensor needs flash attention",
            code="unsupported_split",
            field="context.flash_attention",
            capability="flash_attention",
        )
    try:
        caches = architecture.caches(understanding.hparams, context)
    except PlanError as error:
        if not tensor_mode:
            raise
        raise PlanError(error.message, code="unsupported_split", **error.facts) from error
    return tuple(Classified(tensor=cache, role=cache.role, layer=cache.layer) for cache in caches)


def context_warnings(understanding: Understanding, targets: SplitTargets) -> tuple[str, ...]:
    """What is odd about the context that is asked for."""
    context, trained = targets.context, understanding.hparams.n_ctx_train
    if context is None or not 0 < trained < context.n_ctx // context.n_seq_max:
        return ()
    each = f"{context.n_ctx // context.n_seq_max} tokens of context"
    return (f"{each} for each sequence are more than the {trained} that the model was trained on",)
