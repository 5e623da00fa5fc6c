"""Build steps: jars, software bill of materials, generated docs."""
