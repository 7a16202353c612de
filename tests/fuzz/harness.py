"""`python -m tests.fuzz.harness FOLDER SEEDS [LIBFUZZER OPTIONS]`: inputs bred by the code they reach, until one fails.

FOLDER is for the file under test. Ends with 0 if the bounds that the options set were reached without a fault.
"""

import sys
from pathlib import Path

import atheris

# The catalog is 150 files of declarations: what reads files and keys is where new ways are to be found.
_WATCHED = ["app.modelfile", "app.architectures", "app.planner", "app.loading.run"]
_DECLARATIONS = ["app.architectures.catalog"]

with atheris.instrument_imports(include=_WATCHED, exclude=_DECLARATIONS):
    from tests.fuzz.target import Target


def main() -> None:
    """Breed inputs; the process ends within."""
    folder, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *options], Target(Path(folder)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
