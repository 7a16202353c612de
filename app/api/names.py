"""Names in paths: of files and of metadata keys, which may hold any character, line feeds too."""

from starlette.convertors import PathConvertor, register_url_convertor


class _Name(PathConvertor):
    regex = "(?s:.*)"


def allow_any_name() -> None:
    """Let routes say `{path:name}` for the rest of the path, whatever it is."""
    register_url_convertor("name", _Name())
