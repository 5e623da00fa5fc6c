"""How an audit runs: one run, daily, streaming."""
