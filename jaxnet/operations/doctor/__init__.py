"""Find what would stop or spoil a run on these hosts, before its first step."""
