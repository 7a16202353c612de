"""A load thought through and not begun: file understood, plan made, load mode negotiated. A plan request's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from app.architectures.understanding import Understanding
from app.errors import PlanError
from app.loading.negotiation import MappingDecision
from app.loading.request import PlanRequest, digest
from app.loading.targets import Targets
from app.modelfile.types import ModelFile
from app.planner.audit import Proof, audit, first_failure
from app.planner.plan import SplitPlan
from app.planner.render import plan_json


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything that is decided before anything is allocated. Holds no descriptor and no device memory."""

    request: PlanRequest
    understanding: Understanding
    targets: Targets
    plan: SplitPlan
    mapping: MappingDecision

    @property
    def model(self) -> ModelFile:
        """The validated file."""
        return self.understanding.model

    @cached_property
    def plan_id(self) -> str:
        """A hash of the files' identities and the request, whatever path the file was asked for by."""
        wish = {key: value for key, value in self.request.canonical().items() if key != "model"}
        return digest({"files": [asdict(shard.identity) for shard in self.model.shards], "request": wish})

    @cached_property
    def proofs(self) -> tuple[Proof, ...]:
        """What the audit says about the plan."""
        return audit(self.plan, self.understanding)

    def require_legal(self) -> None:
        """Refuse a plan whose slices do not go together. Raises PlanError unsupported_split with the failed proof."""
        failed = first_failure(self.proofs)
        if failed is not None:
            raise PlanError(
                f"the plan is not legal at {failed.seam}: {failed.detail}",
                code="unsupported_split",
                proof=failed.proof,
                seam=failed.seam,
                tensor=failed.tensor,
                architecture=self.understanding.architecture.name,
            )

    @property
    def planned_bytes(self) -> Mapping[str, int]:
        """Bytes per device that holds any or was asked to, in the plan's order."""
        return {total.name: total.total_bytes for total in self.plan.totals}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd about the file and its vocabulary, the plan and the mode, each sentence once."""
        return tuple(dict.fromkeys((*self.plan.warnings, *self.mapping.warnings)))

    def as_json(self) -> dict[str, Any]:
        """The whole answer: the plan, its id, the model's facts and the load mode."""
        return {
            "plan_id": self.plan_id,
            "model": self.understanding.facts(),
            "load_mode": self.mapping.as_json(),
            **plan_json(self.plan, self.proofs),
            "warnings": list(self.warnings),
        }
