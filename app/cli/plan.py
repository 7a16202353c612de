"""`ggufd plan`: where every tensor of a model would go and why, for one model or for a batch of requests."""

import argparse
import sys

from app.api.bodies import plan_request
from app.api.encoding import encode
from app.cli.batch import plan_batch
from app.cli.summary import plan_summary
from app.cli.verify_plan import audit_table
from app.cli.wishes import add_wish_arguments, wish_body
from app.errors import RequestError
from app.loading.request import check_request
from app.loading.run import prepare
from app.main import build_world
from app.planner.audit import first_failure
from app.settings import process_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One model with the flags of a request, or a batch."""
    parser.add_argument("file", metavar="FILE", nargs="?", help="a GGUF file")
    parser.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    parser.add_argument("--audit", action="store_true", help="show the proofs about the plan; end with 1 if one fails")
    parser.add_argument(
        "--batch",
        metavar="FILE",
        help="plan many: a file (or - for standard input) with the body of a plan request on each line; prints a plan"
        " or a problem for each, in the same order",
    )
    add_wish_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Plan. A batch ends with 0 whatever its requests come to."""
    if (arguments.file is None) == (arguments.batch is None):
        raise RequestError("plan: give either one FILE or --batch", field="FILE")
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
        if arguments.audit:
            print("\nproofs\n" + audit_table(prepared.proofs))
    return 1 if arguments.audit and first_failure(prepared.proofs) is not None else 0
