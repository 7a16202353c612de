"""The files of a model in the words of the client that asked for it, who need not know where they lie."""

from pathlib import PurePath

from app.errors import Fact, FileError
from app.modelfile.text import shown
from app.modelfile.types import ModelFile, Shard


def renamed(error: FileError, asked: str, model: ModelFile) -> FileError:
    """`error`, a fresh one, with every file of `model` named as `asked` would name it."""
    names = {shown(shard.path): shown(name) for shard, name in _names(asked, model)}
    message = error.message
    for path in sorted(names, key=len, reverse=True):
        message = message.replace(path, names[path])
    facts: dict[str, Fact] = {
        fact: names.get(value, value) if isinstance(value, str) else value for fact, value in error.facts.items()
    }
    return type(error)(message, code=error.code, **facts)


def _names(asked: str, model: ModelFile) -> list[tuple[Shard, str]]:
    """Each part of the model with its name: beside the part that was asked for, or in the folder that was."""
    if len(model.shards) == 1:
        return [(model.shards[0], asked)]
    wanted = PurePath(asked)
    folder = wanted.parent if wanted.name in {shard.path.name for shard in model.shards} else wanted
    return [(shard, str(folder / shard.path.name)) for shard in model.shards]
