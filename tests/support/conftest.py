"""These files are for an interpreter that has PyTorch."""

collect_ignore_glob = ["torch_*.py"]
