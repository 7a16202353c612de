"""The HTTP edge: routes, bodies and problem documents."""
