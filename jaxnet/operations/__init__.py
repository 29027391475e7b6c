"""The operator's tools: launchers, supervision, doctor, lab."""
