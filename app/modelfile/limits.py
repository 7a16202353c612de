"""How much a header may ask of us. Every limit is a setting; the defaults are far above any published model."""

from dataclasses import dataclass

from app.units import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Bounds on one header, so that memory and time while parsing are bounded whatever the bytes are.

    Counts that cannot fit into the bytes that remain in the file are refused before these are looked at.
    """

    n_keys: int = 65_536
    """Metadata entries of one file."""
    n_tensors: int = 65_536
    """Tensors over all shards; published models have up to a few thousand."""
    n_shards: int = 1024
    """Files of one split model."""
    key_bytes: int = 65_535
    """One key's length; the format's own bound."""
    string_bytes: int = 64 * MIB
    """One string's length, as a value or in an array."""
    text_bytes: int = 64 * MIB
    """All keys and string values together; these are built, unlike arrays."""
    array_elements: int = 2**30
    """One array's length; the reference's own bound."""
    array_strings: int = 3 * 2**20
    """Strings in all arrays of one file; each must be walked, at about ten million a second."""
    built_elements: int = 2**20
    """Numbers in all short arrays of one file; these are built."""
    header_bytes: int = GIB
    """Where the header of one file must end."""
