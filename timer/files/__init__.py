"""The files of a store: disk, segmented logs, wheel."""
