"""One file per architecture; the registry lists this folder and nothing else names it."""
