"""Engine `wheel`: TimerLog, TimerWheel and body log, as in RIP-43."""
