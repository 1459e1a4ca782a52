"""Running artifacts: host programs, ATen calls, workspaces, and the OpenMP runtime of the process."""
