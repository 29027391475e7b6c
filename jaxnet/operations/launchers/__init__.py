"""Start a command on many hosts: Slurm, MPI, SSH, Kubernetes, TPU VMs, SkyPilot."""
