"""`python -m app` is the command `ggufd`."""

import sys

from app.main import main

sys.exit(main())
