"""The commands, and what all of them share: parsing, one-line errors, exit codes, quiet ends of broken pipes."""

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from app import __version__
from app.cli.collecting import no_collections
from app.cli.text import printable
from app.errors import GgufdError, RequestError

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130
_MESSAGE_CHARACTERS: Final = 2000

COMMANDS: Final[Mapping[str, str]] = {
    "quickstart": "start a daemon, load a real model on two devices, show what happened, and stop",
    "serve": "run the daemon",
    "load": "ask a running daemon for a model and watch it load",
    "plan": "show where every tensor of a model would go, and why; loads nothing",
    "verify-plan": "prove that a plan is legal, by its numbers or by computing with the weights",
    "inspect": "show what a GGUF file is, what is missing from it, and what is wrong",
    "architectures": "show the catalog of architectures",
}
"""Each command's name is its module's (with _ for -); only the module of the command that is asked for is imported."""


def run(argv: Sequence[str]) -> int:
    """Carry out the command line `argv`; answers the exit code: a wish that makes no sense is misuse, too."""
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a path may hold any bytes, a terminal not
    try:
        code = _carry_out(argv)
        sys.stdout.flush()
    except GgufdError as error:
        complain(error)
        return MISUSED if error.code == RequestError.general_code else FAILED
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain once more when it flushes at exit.
        _discard_output()
        return FAILED
    except OSError as error:  # whatever a file or a connection can do is an error of our own: this is the output
        sys.stderr.write(f"ggufd: the output cannot be written: {error.strerror or error}\n")
        _discard_output()
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("ggufd: interrupted\n")
        return INTERRUPTED
    return code


def _open_what_is_closed() -> None:
    """Whoever starts us may have closed standard input or outputs; no file of ours shall take their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # each gets the lowest number there is
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 -- for as long as the process lives


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(error: GgufdError) -> None:
    """One line on standard error: the code and the sentence."""
    sys.stderr.write(f"ggufd: {error.code}: {printable(error.message, _MESSAGE_CHARACTERS)}\n")


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line in one line."""

    def error(self, message: str) -> NoReturn:
        """Say it, and end: 2."""
        self.exit(MISUSED, f"{self.prog}: {printable(message, _MESSAGE_CHARACTERS)} ({self.prog} --help says more)\n")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Say which of the words that are left over is none of this command's, and which was probably meant."""
        flag = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
        if flag is None:
            self.error(f"{unknown[0]!r} is one argument too many")
        meant = difflib.get_close_matches(flag, self._option_string_actions, 1)
        self.error(f"there is no flag {flag}" + (f"; is {meant[0]} meant?" if meant else ""))


def parser_for(argv: Sequence[str]) -> Parser:
    """The parser, complete for the command that `argv` names."""
    parser = Parser(prog="ggufd", description="Loads GGUF models on request, and says where every tensor goes and why.")
    parser.add_argument("--version", action="version", version=f"ggufd {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in argv if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        subparser.set_defaults(parser=subparser)
        if name == chosen:
            with no_collections():
                module = importlib.import_module(f"app.cli.{name.replace('-', '_')}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def _carry_out(argv: Sequence[str]) -> int:
    try:
        arguments, unknown = parser_for(argv).parse_known_args(argv)
        if unknown:
            arguments.parser.refuse(unknown)
    except SystemExit as end:  # argparse has said what is wrong, or has shown the help
        return end.code if isinstance(end.code, int) else MISUSED
    code = arguments.run(arguments)
    assert isinstance(code, int)
    return code
