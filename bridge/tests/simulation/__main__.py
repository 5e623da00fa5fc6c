import sys

from bridge.tests.simulation.world import main

sys.exit(main(sys.argv[1:]))
