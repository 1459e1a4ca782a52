"""A Module @MACHINE in, an Artifact (code, and the steps of one call) out: a package for each kind of target."""
