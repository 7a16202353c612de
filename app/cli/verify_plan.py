"""`ggufd verify-plan`: prove that a plan is legal: by its numbers, and if asked by computing with the weights."""

import argparse
import sys
from contextlib import ExitStack

from app.api.bodies import plan_request
from app.api.encoding import encode
from app.cli.text import line_width, plural, printable, table, wrapped
from app.cli.wishes import FILE_HELP, add_wish_arguments, wish_body
from app.errors import PlanError, RequestError
from app.loading.numeric import NumericProof, layers_to_prove, numeric_proofs
from app.loading.prepared import Prepared
from app.loading.request import check_request
from app.loading.run import prepare
from app.main import build_world
from app.modelfile.source import open_source
from app.planner.audit import Proof
from app.planner.plan import SplitMode
from app.settings import process_settings

FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of a plan request, and what to prove."""
    parser.add_argument("file", metavar="FILE", help=FILE_HELP)
    parser.add_argument("--json", action="store_true", help="print the proofs as JSON, as in a plan")
    parser.add_argument(
        "--numeric",
        action="store_true",
        help="also compute the seams of some layers whole and split, with the model's own weights (tensor mode)",
    )
    parser.add_argument(
        "--layers", metavar="LIST", help="with --numeric, layers to compute: 0,5,17; default: one of each kind"
    )
    parser.add_argument("--seed", metavar="N", type=int, help="with --numeric, the activations' seed; default: 0")
    add_wish_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prove, print, and end with 1 if a proof fails."""
    for name in ("layers", "seed"):
        if getattr(arguments, name) is not None and not arguments.numeric:
            raise RequestError(f"verify-plan: --{name} does nothing without --numeric", field=name)
    if arguments.seed is not None and not 0 <= arguments.seed < 2**32:
        raise RequestError(f"--seed: {arguments.seed} is not a whole number from 0 to {2**32 - 1}", field="seed")
    world = build_world(process_settings(), None)
    request = plan_request(wish_body(arguments, arguments.file))
    check_request(request, tuple(world.backends))
    if arguments.numeric and request.split_mode is not SplitMode.TENSOR:
        raise RequestError("--numeric compares slices: it needs --split-mode tensor", field="split_mode")
    prepared = prepare(request, world)
    numeric = _numeric(prepared, arguments) if arguments.numeric else ()
    if arguments.json:
        entries = {"audit": [proof.as_json() for proof in prepared.proofs]}
        if arguments.numeric:
            entries["numeric"] = [proof.as_json() for proof in numeric]
        sys.stdout.buffer.write(encode(entries))
    else:
        print(audit_table(prepared.proofs))
        if arguments.numeric:
            print("\n" + _numeric_table(numeric))
        print("\n" + audit_verdict(prepared.proofs, numeric))
    holds = all(proof.holds for proof in prepared.proofs) and all(proof.holds for proof in numeric)
    return 0 if holds else FAILED


def audit_table(proofs: tuple[Proof, ...]) -> str:
    """One line per proof: whether it holds, how much it looked at, the numbers of one seam."""
    rows = [
        ("holds" if proof.holds else "FAILS", proof.proof, str(proof.checked), printable(proof.detail, 200))
        for proof in proofs
    ]
    return table(rows, header=("", "proof", "checked", "numbers"), right=(2,), width=line_width())


def audit_verdict(proofs: tuple[Proof, ...], numeric: tuple[NumericProof, ...] = ()) -> str:
    """One line: whether the plan is legal, and if not, which proofs fail."""
    failed = [proof.proof for proof in proofs if not proof.holds]
    failed += [f"{proof.seam} of layer {proof.layer}" for proof in numeric if not proof.holds]
    if failed:
        return wrapped(f"the plan is not legal: {', '.join(failed)} failed", line_width())
    computed = f", and {plural(len(numeric), 'computed seam')} agree" if numeric else ""
    return f"the plan is legal: all {len(proofs)} proofs hold{computed}"


def _numeric_table(proofs: tuple[NumericProof, ...]) -> str:
    rows = [
        ("holds" if proof.holds else "FAILS", proof.seam, str(proof.layer), f"{proof.error:.1e}", proof.detail)
        for proof in proofs
    ]
    return table(rows, header=("", "seam", "layer", "error", "numbers"), right=(2, 3), width=line_width())


def _numeric(prepared: Prepared, arguments: argparse.Namespace) -> tuple[NumericProof, ...]:
    understanding = prepared.understanding
    layers = layers_to_prove(understanding)
    if arguments.layers is not None:
        layers = _layers(arguments.layers, understanding.hparams.n_layer)
    with ExitStack() as files:
        sources = [files.enter_context(open_source(shard)) for shard in prepared.model.shards]
        proofs = tuple(numeric_proofs(prepared.plan, understanding, sources, layers, arguments.seed or 0))
    if not proofs:
        raise PlanError(
            "none of these layers has a seam that can be computed: nothing in them is cut over the devices",
            code="unsupported_split",
            architecture=understanding.architecture.name,
        )
    return proofs


def _layers(text: str, n_layer: int) -> tuple[int, ...]:
    try:
        layers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise RequestError(f"--layers: {text!r} is no list of numbers", field="layers") from None
    if any(not 0 <= layer < n_layer for layer in layers):
        raise RequestError(f"--layers: the model has layers 0 to {n_layer - 1}", field="layers")
    return layers
