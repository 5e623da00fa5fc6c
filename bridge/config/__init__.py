"""Settings, checked once at the start: flags, environment, TOML file, and what topics must look like."""
