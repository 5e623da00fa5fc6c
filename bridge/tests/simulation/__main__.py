import sys

from bridge.tests.simulation.run import main

sys.exit(main(sys.argv[1:]))
