"""Running artifacts: the host program of one call, ATen calls, workspaces, and the OpenMP runtime of the process."""
