"""What a run is: a Config of dataclasses, read from a file and `key=value`, and checked."""
