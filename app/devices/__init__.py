"""Backends behind two small protocols, and what each device can do."""
