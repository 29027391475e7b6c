"""A step as several programs, so that messages travel while others compute."""
