"""Send records of the rejected topic again."""
