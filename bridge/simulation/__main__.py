import sys

from bridge.simulation.world import main

sys.exit(main(sys.argv[1:]))
