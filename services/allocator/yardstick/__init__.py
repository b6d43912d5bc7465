"""What `policies/optimus.py` needs beside its rule: Optimus' fits, probes and choice of nodes."""
