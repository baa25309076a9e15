"""Consumer groups on simulated clusters: members of both protocols, outsiders, and judges of the answers."""
