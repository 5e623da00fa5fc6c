"""Programs around the bridge that are not shipped with it: demo, bench, build steps."""
