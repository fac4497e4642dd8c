"""How fast the embedded stores are, against the floor that the machine sets."""
