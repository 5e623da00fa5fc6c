"""Run `timer-bridge` so that every recovery is one in the background: python -m ... run --bootstrap-servers ..."""

from functools import partial
from unittest import mock

from bridge.cli import app
from bridge.config import settings
from bridge.partition.options import TurnOptions

if __name__ == "__main__":
    with mock.patch.object(settings, "TurnOptions", partial(TurnOptions, prepare_from=1)):
        app.main()
