"""`ggufd plan`: where every tensor of a model would go and why, for one model or for a batch of requests."""

import argparse
import sys

from app.api.bodies import plan_request
from app.api.encoding import encode
from app.cli.batch import plan_batch
from app.cli.summary import plan_summary, tensor_lines
from app.cli.verify_plan import audit_table, audit_verdict
from app.cli.wishes import FILE_HELP, add_wish_arguments, given_flags, wish_body
from app.errors import RequestError
from app.loading.request import check_request
from app.loading.run import prepare
from app.main import build_world
from app.planner.audit import first_failure
from app.settings import process_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One model with the flags of a request, or a batch."""
    parser.add_argument("file", metavar="FILE", nargs="?", help=FILE_HELP)
    parser.add_argument("--tensors", action="store_true", help="list every tensor, not only examples")
    parser.add_argument("--json", action="store_true", help="print the whole plan as JSON, as the daemon answers it")
    parser.add_argument("--audit", action="store_true", help="show the proofs about the plan; end with 1 if one fails")
    parser.add_argument(
        "--batch",
        metavar="FILE",
        help="plan many: a file (or - for standard input) with the body of a plan request on each line; prints a plan"
        " or a problem for each, in the same order; blank lines are passed over, a problem has the number of its line",
    )
    add_wish_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Plan. A batch ends with 0 whatever its requests come to."""
    if (arguments.file is None) == (arguments.batch is None):
        raise RequestError("plan: give either one FILE or --batch", field="FILE")
    if arguments.batch is not None:
        _require_nothing_else(arguments)
    settings = process_settings()
    world = build_world(settings, None)
    if arguments.batch is not None:
        return plan_batch(arguments.batch, world, settings.api.max_body_bytes)
    request = plan_request(wish_body(arguments, arguments.file))
    check_request(request, tuple(world.backends))
    prepared = prepare(request, world)
    plan = prepared.as_json()
    if arguments.json:
        sys.stdout.buffer.write(encode(plan))
    else:
        print(plan_summary(plan))
        if arguments.tensors:
            print("\n".join(tensor_lines(plan)))
        if arguments.audit:
            print("\nproofs\n" + audit_table(prepared.proofs))
            print(audit_verdict(prepared.proofs))
    return 1 if arguments.audit and first_failure(prepared.proofs) is not None else 0


def _require_nothing_else(arguments: argparse.Namespace) -> None:
    """A batch's lines say everything. Raises RequestError for a flag that would change nothing."""
    flags = [
        *given_flags(arguments),
        *(f"--{name}" for name in ("json", "tensors", "audit") if arguments.__dict__[name]),
    ]
    if flags:
        raise RequestError(f"plan: {flags[0]} does nothing with --batch: each line says what it wants", field=flags[0])
